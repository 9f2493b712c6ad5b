"""What goes into a driver's JVM: jars, our Scala classes, log settings. `orchestration.jvm` builds from them."""
