"""The world `successions`: shards that are split, merged and handed over while their sources are killed."""
