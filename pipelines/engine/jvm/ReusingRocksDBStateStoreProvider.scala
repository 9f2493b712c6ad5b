// in Spark's package: the class that it extends is visible only there
package org.apache.spark.sql.execution.streaming.state

import org.apache.hadoop.conf.Configuration
import org.apache.hadoop.fs.Path
import org.apache.spark.sql.types.StructType

/**
 * Spark's RocksDB state store, with two changes.
 *
 * It doesn't load the state of an aggregation again in every batch.
 * A task of an aggregation opens two stores on one RocksDB, one to read and one to write. At its end it aborts the store
 * that it read from. Then RocksDB forgets which version it holds, even the one that was just committed (SPARK-51955, fixed
 * in Spark 4.1). Here, that abort does nothing if the writing store has committed. In all other cases it works as before.
 *
 * It writes nothing into a checkpoint that was deleted. Spark maintains a store one more time before it asks whether the
 * query still runs. If a task opens a store while its query ends, Spark even takes the query for active from then on. Each
 * maintenance may write a snapshot, which would create the checkpoint's folder again.
 */
class ReusingRocksDBStateStoreProvider extends RocksDBStateStoreProvider {
  @volatile private var writing: Option[StateStore] = None
  @volatile private var conf: Configuration = _

  override def init(
      id: StateStoreId,
      key: StructType,
      value: StructType,
      encoder: KeyStateEncoderSpec,
      columnFamilies: Boolean,
      storeConf: StateStoreConf,
      hadoopConf: Configuration,
      severalValuesPerKey: Boolean,
      schemas: Option[StateSchemaProvider]): Unit = {
    super.init(id, key, value, encoder, columnFamilies, storeConf, hadoopConf, severalValuesPerKey, schemas)
    conf = hadoopConf
  }

  override def doMaintenance(): Unit = if (hasCheckpoint) super.doMaintenance()

  /** Whether the checkpoint still has the file that Spark writes into a new one, and never again. */
  private def hasCheckpoint: Boolean = {
    val file = new Path(new Path(stateStoreId.checkpointRootLocation).getParent, "metadata")
    file.getFileSystem(conf).exists(file)
  }

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
