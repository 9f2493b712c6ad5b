"""What Switchyard keeps in Kafka, and how it talks to it: registry, progress, heartbeats, topics, logins."""
