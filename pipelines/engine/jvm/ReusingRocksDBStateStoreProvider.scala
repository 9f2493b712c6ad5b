// in Spark's own package: the class that it extends is visible nowhere else
package org.apache.spark.sql.execution.streaming.state

/**
 * Spark's RocksDB state, which an aggregation does not load anew in every batch.
 *
 * An aggregation opens its state twice in a task, to read and to write, both of one RocksDB. The task's last act is to
 * abort the reading store, which has RocksDB forget what version it holds, the one that was just committed included
 * (SPARK-51955, mended in Spark 4.1). Here a reading store whose writing store has committed leaves it as it is, as it
 * stays for operators that open their state once. Any other is aborted as ever.
 */
class ReusingRocksDBStateStoreProvider extends RocksDBStateStoreProvider {
  @volatile private var writing: Option[StateStore] = None

  override def getStore(version: Long, checkpointId: Option[String]): StateStore = {
    val store = super.getStore(version, checkpointId)
    writing = Some(store)
    store
  }

  override def getReadStore(from: Long, checkpointId: Option[String]): StateStore = {
    // loads that version, or finds it loaded
    super.getReadStore(from, checkpointId)
    new RocksDBStateStore(from) {
      override def abort(): Unit =
        if (!writing.exists(store => store.version == from && store.hasCommitted)) super.abort()
    }
  }
}
