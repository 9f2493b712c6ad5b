"""What runs on this host: the embedded broker, processes, ports, jars."""
