// in Spark's package: the class that it reads is visible only there
package org.apache.spark.sql.execution.streaming.state

import java.nio.file.Files

import scala.util.control.NonFatal

/**
 * Reads the description of a state before a task does.
 *
 * The first one takes Spark more than half a second, as its JSON library first learns what the classes look like. A task
 * of the first batch would wait for that.
 */
object EarlyReading {
  /** Reads on a thread of its own. If that fails, the task is the first to read. */
  def begin(): Unit = {
    val reading = new Thread(() => try read() catch { case NonFatal(_) => }, "early reading")
    reading.setDaemon(true)
    reading.start()
  }

  /** Writes a description of a state to a temporary file, and reads it. Returns its number of keys. */
  def read(): Long = {
    val file = Files.createTempFile("switchyard", ".json").toFile
    try {
      val (files, logs) = (Seq(RocksDBSstFile("a", "b", 1)), Seq(RocksDBLogFile("a", "b", 1)))
      RocksDBCheckpointMetadata(files, logs, 3, 3, Map("a" -> 1.toShort), Map("a" -> true), 1.toShort).writeToFile(file)
      RocksDBCheckpointMetadata.readFromFile(file).numKeys
    } finally file.delete()
  }
}
