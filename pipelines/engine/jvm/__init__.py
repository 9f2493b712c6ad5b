"""What goes into a driver's JVM: its jars, our Scala classes, and its log settings. `orchestration.jvm` builds them."""
