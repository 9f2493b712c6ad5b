// in Spark's package: what names an execution is visible only there
package org.apache.spark.sql.switchyard

import java.nio.ByteBuffer
import java.util.concurrent.TimeUnit.MILLISECONDS

import io.switchyard.{Failed, TransactionalProducer}
import org.apache.kafka.common.KafkaException
import org.apache.kafka.common.header.Header
import org.apache.kafka.common.header.internals.RecordHeader
import org.json4s.{DefaultFormats, Formats}
import org.json4s.jackson.JsonMethods.parse

import org.apache.spark.TaskContext
import org.apache.spark.rdd.RDD
import org.apache.spark.sql.{Dataset, Row}
import org.apache.spark.sql.catalyst.InternalRow
import org.apache.spark.sql.catalyst.expressions.{UnsafeProjection, UnsafeRow}
import org.apache.spark.sql.classic.{Dataset => ClassicDataset}
import org.apache.spark.sql.execution.SQLExecution
import org.apache.spark.sql.types.StructType
import org.apache.spark.storage.StorageLevel
import org.apache.spark.unsafe.Platform.BYTE_ARRAY_OFFSET

/**
 * The records of a batch, which has been executed once. Until `close`, Spark keeps them in memory, and on disk where that is
 * full. Columns: `key`, `value` and `source`, of an app with several results also `result`, as `results.serialized` has them.
 */
final class BatchRecords private (chunks: RDD[BatchRecords.Chunk], columns: Int, written: Array[BatchRecords.Written]) {
  import BatchRecords._

  val rows: Long = written.map(_.rows).sum

  /**
   * Sends all records that are not too large, in the order of each partition, and returns the others. The caller's thread
   * sends a few bytes; otherwise, Spark's tasks send. `to`: JSON of `To`. `inTurn`: tasks send one partition after the other;
   * else at the same time. Throws `Failed` if a record can't be sent, or if not all are queued within `timeoutMs`.
   */
  def send(producer: TransactionalProducer, to: String, inTurn: Boolean, timeoutMs: Long): Array[TooLarge] = {
    val partitions = written.indices.filter(written(_).rows > 0)
    val sender = new Sender(producer, parse(to).extract[To], columns, timeoutMs)
    val id = Senders.enter(sender)
    try {
      val context = chunks.sparkContext
      def sent(some: Seq[Int]) = context.runJob(chunks, (found: Iterator[Chunk]) => Senders.of(id).send(found), some)
      val parts =
        if (written.forall(_.few.isDefined)) Array(sender.send(written.iterator.flatMap(_.few.get)))
        // executors on other hosts don't have the producer
        else if (!context.isLocal) Array(sender.send(chunks.toLocalIterator))
        else if (inTurn) partitions.toArray.flatMap(each => sent(Seq(each)))
        else if (partitions.nonEmpty) sent(partitions)
        else Array.empty[Part]
      sender.throwIfFailed()
      val found = parts.map(_.rows).sum
      if (found != rows) throw new IllegalStateException(s"a batch has $rows records, but $found were sent")
      parts.flatMap(_.refused)
    } finally Senders.leave(id)
  }

  def close(): Unit = chunks.unpersist(blocking = false)
}

object BatchRecords {
  private implicit val formats: Formats = DefaultFormats
  // Java's serializer, by which Spark writes chunks to disk, holds a hundred of them
  private val ChunkBytes = 1 << 16

  // if no partition has more bytes, the caller's thread sends them all: a job takes 10 ms or more
  private val FewBytes = 1 << 16

  // of a row: a length of 8 bytes keeps the rows aligned
  private[switchyard] val HeaderBytes = 8

  /** Rows as Spark's bytes, each after its length in bytes. */
  final case class Chunk(rows: Int, bytes: Array[Byte])

  /** What a task has made of its partition. `few`: its chunks, unless they are large. */
  final case class Written(rows: Long, few: Option[Array[Chunk]])

  /** Executes the plan of a batch's records: the one action of that batch. */
  def execute(records: Dataset[Row]): BatchRecords = {
    val execution = records.asInstanceOf[ClassicDataset[Row]].queryExecution
    SQLExecution.withNewExecutionId(execution, Some("records")) {
      val schema = records.schema
      val chunks = execution.executedPlan.execute().mapPartitions(packed(_, schema))
      chunks.persist(StorageLevel.MEMORY_AND_DISK)
      try {
        new BatchRecords(chunks, schema.length, chunks.sparkContext.runJob(chunks, summed _))
      } catch {
        case error: Throwable =>
          chunks.unpersist(blocking = false)
          throw error
      }
    }
  }

  private def summed(chunks: Iterator[Chunk]): Written = {
    val few = Array.newBuilder[Chunk]
    var rows, bytes = 0L
    for (chunk <- chunks) {
      rows += chunk.rows
      bytes += chunk.bytes.length
      if (bytes <= FewBytes) few += chunk
    }
    Written(rows, Option.when(bytes <= FewBytes)(few.result()))
  }

  private def packed(rows: Iterator[InternalRow], schema: StructType): Iterator[Chunk] = {
    val projection = UnsafeProjection.create(schema)
    new Iterator[Chunk] {
      override def hasNext: Boolean = rows.hasNext

      override def next(): Chunk = {
        var buffer = new Array[Byte](1 << 12)
        var end, count = 0
        while (end < ChunkBytes && rows.hasNext) {
          val row = rows.next() match {
            case unsafe: UnsafeRow => unsafe
            case other => projection(other)
          }
          val needed = end + HeaderBytes + row.getSizeInBytes
          if (needed > buffer.length)
            buffer = java.util.Arrays.copyOf(buffer, math.max(needed, math.min(2 * buffer.length, ChunkBytes + (1 << 12))))
          ByteBuffer.wrap(buffer).putLong(end, row.getSizeInBytes)
          row.writeToMemory(buffer, BYTE_ARRAY_OFFSET + end + HeaderBytes)
          end = needed
          count += 1
        }
        Chunk(count, if (end == buffer.length) buffer else java.util.Arrays.copyOf(buffer, end))
      }
    }
  }

  /**
   * Where records go. `topics`: result -> topic; the only result has an empty name. `replayed`: how much of the batch's input
   * is a replay, `all`, `some` or `none`. `processed`: if some is, topic of an input -> for each source that reads it,
   * partition -> ranges of offsets that it had read before.
   */
  final case class To(
      topics: Map[String, String], replayed: String,
      processed: Map[String, Seq[Map[String, Seq[Seq[Long]]]]]) {

    def isReplay(source: String): Boolean = replayed == "all" || (replayed == "some" && {
      val offsetAt = source.lastIndexOf(':')
      val partitionAt = source.lastIndexOf(':', offsetAt - 1)
      val offset = source.substring(offsetAt + 1).toLong
      val partition = source.substring(partitionAt + 1, offsetAt)
      processed.getOrElse(source.substring(0, partitionAt), Nil).forall { ranges =>
        ranges.getOrElse(partition, Nil).exists(range => range.head <= offset && offset < range.last)
      }
    })
  }

  /** What became of a partition: how many rows it has, and those that were not sent. */
  private[switchyard] final case class Part(rows: Long, refused: Array[TooLarge])

  /** A record that was not sent, without its value. `source`: null if the row names none. */
  final case class TooLarge(topic: String, key: Array[Byte], valueBytes: Long, source: String, replay: Boolean)
}

/** The batches that are being sent, by number: tasks get only the number. */
private object Senders {
  private val under = new java.util.concurrent.ConcurrentHashMap[Long, Sender]
  private val next = new java.util.concurrent.atomic.AtomicLong

  def enter(sender: Sender): Long = {
    val id = next.incrementAndGet()
    under.put(id, sender)
    id
  }
  def of(id: Long): Sender = under.get(id)
  def leave(id: Long): Unit = under.remove(id)
}

private final class Sender(producer: TransactionalProducer, to: BatchRecords.To, columns: Int, timeoutMs: Long) {
  import BatchRecords._
  import Sender._

  private val deadline = System.nanoTime() + MILLISECONDS.toNanos(timeoutMs)
  private val replay: Header = new RecordHeader("replay", "true".getBytes)
  private val onlyReplay = Array(replay)
  @volatile private var failure: Throwable = _

  /** Sends the rows of a partition. Ends early if any partition has failed. */
  def send(chunks: Iterator[Chunk]): Part = {
    val refused = Array.newBuilder[TooLarge]
    val row = new UnsafeRow(columns)
    var rows = 0L
    // Spark would pass on only the text of what a task throws
    try
      while (chunks.hasNext && mayGoOn) {
        val bytes = chunks.next().bytes
        val lengths = ByteBuffer.wrap(bytes)
        var at = 0
        while (at < bytes.length) {
          val length = lengths.getLong(at).toInt
          row.pointTo(bytes, BYTE_ARRAY_OFFSET + at + HeaderBytes, length)
          at += HeaderBytes + length
          refused ++= one(row)
          rows += 1
        }
      }
    catch { case error: Exception => failure = error }
    Part(rows, refused.result())
  }

  def throwIfFailed(): Unit = {
    val found = if (producer.failure != null) producer.failure else failure
    found match {
      case null =>
      case _: Failed | _: KafkaException => throw Failed.of(found, notCommitted = false)
      // of the app's rows, or of Spark: waiting for Kafka doesn't help
      case _ => throw found
    }
  }

  private def mayGoOn: Boolean = {
    Option(TaskContext.get()).foreach(_.killTaskIfInterrupted())
    if (System.nanoTime() > deadline && failure == null)
      failure = new Failed(Failed.TimedOut, "not all records are written", retriable = true, notCommitted = false)
    failure == null && producer.failure == null
  }

  private def one(row: UnsafeRow): Option[TooLarge] = {
    // a text's bytes are kept as those of a binary value
    val key = if (row.isNullAt(Key)) null else row.getBinary(Key)
    val value = if (row.isNullAt(Value)) null else row.getBinary(Value)
    val source = if (row.isNullAt(Source)) null else row.getBinary(Source)
    val topic = to.topics(if (columns > Result) row.getString(Result) else "")
    val again = if (source == null) to.replayed == "all" else to.replayed != "none" && to.isReplay(row.getString(Source))
    val headers =
      if (source == null) { if (again) onlyReplay else null }
      else {
        val named: Header = new RecordHeader("source", source)
        if (again) Array(named, replay) else Array(named)
      }
    if (bytesOf(key, value, headers) > producer.maxRecordBytes)
      return Some(TooLarge(topic, key, if (value == null) 0 else value.length, if (source == null) null else row.getString(Source), again))
    producer.send(topic, null, key, value, headers)
    None
  }
}

private object Sender {
  private val Key = 0
  private val Value = 1
  private val Source = 2
  private val Result = 3
  // as in `records.refusal`
  private val Overhead = 36L

  /** The size of a record, as `records.refusal` measures it. */
  def bytesOf(key: Array[Byte], value: Array[Byte], headers: Array[Header]): Long = {
    var size = Overhead + lengthOf(key) + lengthOf(value)
    if (headers != null)
      for (header <- headers) {
        val name = header.key.length
        val content = lengthOf(header.value)
        size += name + varintBytes(name) + content + varintBytes(content)
      }
    size
  }

  private def lengthOf(part: Array[Byte]): Int = if (part == null) 0 else part.length

  private def varintBytes(length: Int): Int = math.max(1, (32 - Integer.numberOfLeadingZeros(length) + 1 + 6) / 7)
}
