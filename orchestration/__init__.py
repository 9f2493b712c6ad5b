"""What operators use: operations, and the terminal and Dagster as shells around them."""
