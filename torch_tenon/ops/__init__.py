"""Which op runs how: the manifest, derived variants, decompositions."""
