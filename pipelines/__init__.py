"""What a driver and a consumer need."""
