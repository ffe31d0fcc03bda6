"""The HTTPS server in front of the admission decisions."""
