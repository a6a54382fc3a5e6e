"""What the device did, for people: counts, times, and the pages that show them."""
