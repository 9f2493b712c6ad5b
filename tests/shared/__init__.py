"""The platform inside the test's process: drivers are threads with one Spark session, commands start no process."""
