"""From device plugins to DRA and back: what is looked at before, what is compared meanwhile."""
