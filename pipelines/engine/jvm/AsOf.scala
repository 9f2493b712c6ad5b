// in Spark's package: what makes a column of an expression is visible only there
package org.apache.spark.sql.switchyard

import java.nio.ByteBuffer
import java.time.Instant
import java.time.temporal.ChronoUnit
import java.util.{List => JavaList}

import scala.collection.mutable.ArrayBuffer
import scala.jdk.CollectionConverters._

import org.apache.spark.sql.{Column, DataFrame, Encoder, Encoders}
import org.apache.spark.sql.functions.{col, lit, struct, sum, unix_micros, when}
import org.apache.spark.sql.streaming.{ExpiredTimerInfo, OutputMode, StatefulProcessor, TTLConfig, TimeMode, TimerValues, ValueState}
import org.apache.spark.sql.types.StructType

/**
 * Joins a stream with a table as of the time of each of the stream's rows.
 *
 * Both inputs go as one union, keyed by the columns that they are joined on, through one stateful operator. What a row
 * holds is opaque to it: bytes that `Packed` makes and `Unpacked` reads.
 */
object AsOf {

  /** A record of the table, or a row of the stream. `time`: in µs. `row` is null for a record that deletes its key. */
  case class In(key: Array[Byte], of_table: Boolean, time: Long, partition: Int, offset: Long, row: Array[Byte])

  /** A row of the stream with what was found of the table, or, without a row, how many of the table's records were late. */
  case class Out(event_time: Instant, row: Array[Byte], found: Array[Byte], late: Long)

  /** The place of a row in the order that decides: by time, then by where it is in its topic. */
  implicit private val place: Ordering[Entry] = Ordering.by(entry => (entry.time, entry.partition, entry.offset))
  implicit private val ins: Encoder[In] = Encoders.product[In]
  implicit private val outs: Encoder[Out] = Encoders.product[Out]
  implicit private val bytes: Encoder[Array[Byte]] = Encoders.BINARY

  /**
   * The columns of `stream`, then the columns `taken` of `table`, which are null where its key has no version.
   *
   * `stream` needs `event_time` with a watermark; `table` needs event_time, partition, offset and `deleted`. `on`: columns
   * of both, of the same types. The observation `late` counts the table's records that came after the watermark had passed
   * them.
   */
  def join(
      stream: DataFrame, table: DataFrame, on: JavaList[String], taken: JavaList[String], late: String): DataFrame = {
    val names = on.asScala.toSeq
    val key = Packed.column(struct(names.map(quoted): _*)).as("key")
    val rest = stream.columns.toSeq.filter(_ != "event_time")
    val (left, right) = (struct(rest.map(quoted): _*), struct(taken.asScala.toSeq.map(quoted): _*))
    val time = unix_micros(col("event_time")).as("time")
    def placed(name: String, kind: String): Column =
      if (stream.schema.exists(f => f.name == name && f.dataType.typeName == kind)) col(name) else lit(0).cast(kind)
    val rows = stream.select(
      key, lit(false).as("of_table"), time, placed("partition", "integer").as("partition"),
      placed("offset", "long").as("offset"), Packed.column(left).as("row"), col("event_time").as("late_by"))
    // a late record of the table must get in, so there is nothing to tell Spark that it is late
    val records = table.where(names.map(quoted(_).isNotNull).reduce(_ && _)).select(
      key, lit(true).as("of_table"), time, col("partition"), col("offset"),
      when(!col("deleted"), Packed.column(right)).as("row"),
      lit(null).cast("timestamp").as("late_by"))
    val told = rows.union(records).groupBy("key").as[Array[Byte], In]
      .transformWithState(new Join, "event_time", OutputMode.Append()).toDF()
      .observe(late, sum("late").as("late")).where(col("row").isNotNull)
    val row = Unpacked.column(col("row"), stream.select(rest.map(quoted): _*).schema).as("row")
    val found = Unpacked.column(col("found"), table.select(taken.asScala.toSeq.map(quoted): _*).schema).as("found")
    told.select(col("event_time"), row, found).select(
      stream.columns.toSeq.map(n => if (n == "event_time") col(n) else col("row").getField(n).as(n)) ++
        taken.asScala.map(n => col("found").getField(n).as(n)): _*)
  }

  private def quoted(name: String): Column = col(s"`${name.replace("`", "``")}`")

  /** A version of a key in the table, null if it deletes the key; or a row of the stream that waits for the watermark. */
  private final class Entry(val time: Long, val partition: Int, val offset: Long, val row: Array[Byte])

  /**
   * Decides a row once the watermark has reached its time: no earlier record of the table is to be expected then.
   *
   * Of each key it keeps the version that holds at the watermark, all later ones, and the rows that wait. One timer stands
   * for each key with rows that wait, at the time of the first.
   */
  private class Join extends StatefulProcessor[Array[Byte], In, Out] {
    @transient private var state: ValueState[Array[Byte]] = _

    override def init(outputMode: OutputMode, timeMode: TimeMode): Unit =
      state = getHandle.getValueState[Array[Byte]]("as_of", Encoders.BINARY, TTLConfig.NONE)

    override def handleInputRows(key: Array[Byte], records: Iterator[In], timers: TimerValues): Iterator[Out] = {
      val kept = Kept.read(state.get())
      val told = kept.take(records, timers.getCurrentWatermarkInMs())
      // it may be due, and has nothing to do any more
      if (kept.timer != Kept.NoTimer && kept.timer != kept.due) getHandle.deleteTimer(kept.timer)
      store(kept)
      told
    }

    override def handleExpiredTimer(
        key: Array[Byte], timers: TimerValues, expired: ExpiredTimerInfo): Iterator[Out] = {
      val kept = Kept.read(state.get())
      val told = kept.take(Iterator.empty, timers.getCurrentWatermarkInMs())
      // Spark deletes the timer
      kept.timer = Kept.NoTimer
      store(kept)
      told
    }

    private def store(kept: Kept): Unit = {
      if (kept.timer != kept.due && kept.due != Kept.NoTimer) getHandle.registerTimer(kept.due)
      kept.timer = kept.due
      if (kept.isEmpty) state.clear() else state.update(kept.written)
    }
  }

  /** What is kept of one key. `timer`: when its timer goes off. Versions and rows are in order. */
  private final class Kept(var timer: Long, var versions: ArrayBuffer[Entry], var waiting: ArrayBuffer[Entry]) {

    def isEmpty: Boolean = versions.isEmpty && waiting.isEmpty

    /** When the first row that waits can be decided, in ms as timers and watermarks are. */
    def due: Long = if (waiting.isEmpty) Kept.NoTimer else -Math.floorDiv(-waiting.head.time, 1000L)

    /** Takes records in, and decides what can be decided. */
    def take(records: Iterator[In], watermarkMs: Long): Iterator[Out] = {
      val watermark = watermarkMs * 1000
      var (late, more, rows) = (0L, false, false)
      records.foreach { record =>
        val entry = new Entry(record.time, record.partition, record.offset, record.row)
        if (record.of_table) {
          versions += entry
          more = true
          if (record.time <= watermark) late += 1
        } else {
          waiting += entry
          rows = true
        }
      }
      if (more) versions = versions.sorted
      if (rows) waiting = waiting.sorted
      val told = decide(watermark)
      forget(watermark)
      // after the watermark, as no row may be before it
      if (late > 0) told += Out(instant(watermark + 1000), null, null, late)
      told.iterator
    }

    private def instant(time: Long): Instant = Instant.EPOCH.plus(time, ChronoUnit.MICROS)

    private def decide(watermark: Long): ArrayBuffer[Out] = {
      val told = ArrayBuffer.empty[Out]
      var next = 0
      var decided = 0
      while (decided < waiting.length && waiting(decided).time <= watermark) {
        val row = waiting(decided)
        // a version of the same time counts
        while (next < versions.length && versions(next).time <= row.time) next += 1
        told += Out(instant(row.time), row.row, if (next == 0) null else versions(next - 1).row, 0)
        decided += 1
      }
      waiting.remove(0, decided)
      told
    }

    /** Drops the versions before the one that holds at the watermark; that one, too, if it deletes the key. */
    private def forget(watermark: Long): Unit = {
      var past = 0
      while (past < versions.length && versions(past).time <= watermark) past += 1
      if (past > 0) versions.remove(0, if (versions(past - 1).row == null) past else past - 1)
    }

    def written: Array[Byte] = {
      val both = Seq(versions, waiting)
      val size = both.map(_.iterator.map(entry => Kept.EntryBytes + (if (entry.row == null) 0 else entry.row.length)).sum)
      val out = ByteBuffer.allocate(1 + 8 + 2 * 4 + size.sum)
      out.put(Kept.Layout).putLong(timer)
      both.foreach { entries =>
        out.putInt(entries.length)
        entries.foreach { entry =>
          out.putLong(entry.time).putInt(entry.partition).putLong(entry.offset)
          out.putInt(if (entry.row == null) -1 else entry.row.length)
          if (entry.row != null) out.put(entry.row)
        }
      }
      out.array
    }
  }

  private object Kept {
    val NoTimer: Long = Long.MinValue
    /** Checkpoints hold what `written` writes: another form needs another number, and this one must stay readable. */
    val Layout: Byte = 1
    /** time, partition, offset, and the length of the row */
    val EntryBytes: Int = 8 + 4 + 8 + 4

    def read(bytes: Array[Byte]): Kept =
      if (bytes == null) new Kept(NoTimer, ArrayBuffer.empty, ArrayBuffer.empty)
      else {
        val in = ByteBuffer.wrap(bytes)
        val layout = in.get()
        require(layout == Layout, s"the state of a join is of layout $layout; this version reads $Layout")
        new Kept(in.getLong(), entries(in), entries(in))
      }

    private def entries(in: ByteBuffer): ArrayBuffer[Entry] =
      ArrayBuffer.fill(in.getInt()) {
        val (time, partition, offset, length) = (in.getLong(), in.getInt(), in.getLong(), in.getInt())
        val row = if (length < 0) null else new Array[Byte](length)
        if (row != null) in.get(row)
        new Entry(time, partition, offset, row)
      }
  }
}
