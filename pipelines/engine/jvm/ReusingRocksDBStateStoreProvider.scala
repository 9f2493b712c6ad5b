// in Spark's package: the class that it extends is visible only there
package org.apache.spark.sql.execution.streaming.state

/**
 * Spark's RocksDB state store, without loading the state of an aggregation again in every batch.
 *
 * A task of an aggregation opens two stores on one RocksDB, one to read and one to write. At its end it aborts the store
 * that it read from. Then RocksDB forgets which version it holds, even the one that was just committed (SPARK-51955, fixed
 * in Spark 4.1). Here, that abort does nothing if the writing store has committed. In all other cases it works as before.
 */
class ReusingRocksDBStateStoreProvider extends RocksDBStateStoreProvider {
  @volatile private var writing: Option[StateStore] = None

  override def getStore(version: Long, checkpointId: Option[String]): StateStore = {
    val store = super.getStore(version, checkpointId)
    writing = Some(store)
    store
  }

  override def getReadStore(from: Long, checkpointId: Option[String]): StateStore = {
    // loads that version, unless it is loaded
    super.getReadStore(from, checkpointId)
    new RocksDBStateStore(from) {
      override def abort(): Unit =
        if (!writing.exists(store => store.version == from && store.hasCommitted)) super.abort()
    }
  }
}
