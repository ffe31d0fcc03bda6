"""What there is to give, who gets it and why: a snapshot or events in, values out."""
