"""The platform inside the test's process: drivers as threads of its one Spark session, commands without a process of their own."""
