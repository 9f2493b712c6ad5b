"""Looking: finds out about releases, their inputs and their users, and what is wrong with them.

Nothing here writes to Kafka or to the state folder.
"""
