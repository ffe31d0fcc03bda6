"""The cluster as caches: client, reflectors, leases, and the facts assembled from them."""
