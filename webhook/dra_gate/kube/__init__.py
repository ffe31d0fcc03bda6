"""What a Pod, a claim, a slice and a quantity look like: readers over raw JSON, and JSON Patch building."""
