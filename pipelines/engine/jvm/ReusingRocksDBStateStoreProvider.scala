// in Spark's package: the class that it extends is visible only there
package org.apache.spark.sql.execution.streaming.state

import java.util.UUID

import org.apache.hadoop.conf.Configuration
import org.apache.spark.SparkEnv
import org.apache.spark.sql.execution.streaming.StreamExecution
import org.apache.spark.sql.types.StructType

/**
 * Spark's RocksDB state store, with two changes.
 *
 * It doesn't load the state of an aggregation again in every batch.
 * A task of an aggregation opens two stores on one RocksDB, one to read and one to write. At its end it aborts the store
 * that it read from. Then RocksDB forgets which version it holds, even the one that was just committed (SPARK-51955, fixed
 * in Spark 4.1). Here, that abort does nothing if the writing store has committed. In all other cases it works as before.
 *
 * It writes nothing once its query has ended. Spark maintains a store one more time before it asks whether the query still
 * runs. That may write a snapshot up to 15 s after the end, and make a checkpoint's folder again that is already deleted.
 */
class ReusingRocksDBStateStoreProvider extends RocksDBStateStoreProvider {
  @volatile private var writing: Option[StateStore] = None
  @volatile private var run: Option[UUID] = None

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
    run = Option(hadoopConf.get(StreamExecution.RUN_ID_KEY)).map(UUID.fromString)
  }

  override def doMaintenance(): Unit = if (run.forall(isActive)) super.doMaintenance()

  private def isActive(run: UUID): Boolean = Option(SparkEnv.get).exists { env =>
    StateStoreCoordinatorRef.forExecutor(env).verifyIfInstanceActive(StateStoreProviderId(stateStoreId, run), env.executorId)
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
