package io.switchyard

import java.nio.ByteBuffer
import java.nio.charset.StandardCharsets.UTF_8
import java.time.Duration
import java.util.{HashMap, Map => JavaMap}
import java.util.concurrent.TimeUnit.{MILLISECONDS, NANOSECONDS}
import java.util.concurrent.atomic.{AtomicLong, AtomicReference}

import org.apache.kafka.clients.consumer.{ConsumerGroupMetadata, OffsetAndMetadata}
import org.apache.kafka.clients.producer.{Callback, ExistingTopics, ProducerRecord, RecordMetadata}
import org.apache.kafka.common.{KafkaException, TopicPartition}
import org.apache.kafka.common.errors._
import org.apache.kafka.common.header.Header
import org.apache.kafka.common.header.internals.{RecordHeader, RecordHeaders}
import org.apache.kafka.common.protocol.Errors

/**
 * The transactional producer of a release, in the JVM of its driver. All tasks of the JVM send through it; the driver's thread
 * alone begins, commits and aborts.
 *
 * `properties`: those of Kafka's client. `maxRecordBytes`: a larger record is not sent. Each method throws `Failed`.
 */
final class TransactionalProducer(properties: JavaMap[String, Object], val maxRecordBytes: Long) {
  import TransactionalProducer._

  private val producer = answered(ExistingTopics.producer(properties))
  // of the transaction under way
  @volatile private var sent = new Sent

  /** Fences every other producer with this transactional id. */
  def init(timeoutMs: Long): Unit = answered {
    val deadline = System.nanoTime() + MILLISECONDS.toNanos(timeoutMs)
    var done = false
    while (!done)
      try {
        producer.initTransactions()
        done = true
      } catch {
        // the call may be repeated. Each takes `max.block.ms` at most
        case _: TimeoutException if System.nanoTime() < deadline =>
      }
  }

  def begin(): Unit = answered {
    sent = new Sent
    producer.beginTransaction()
  }

  /** Sends one record. `partition`: null leaves it to the key. `key`, `value`, `headers`: may be null. */
  def send(topic: String, partition: Integer, key: Array[Byte], value: Array[Byte], headers: Array[Header]): Unit = {
    val now = sent
    // else each record after a failed one would wait as long as that did
    if (now.failure.get != null) throw now.failure.get
    val record = new ProducerRecord(
      topic, partition, null, key, value, if (headers == null) null else new RecordHeaders(headers))
    now.left.incrementAndGet()
    try producer.send(record, now)
    catch {
      case error: Throwable =>
        now.left.decrementAndGet()
        throw error
    }
  }

  /** Sends records that `engine/jvm_producer.py` has framed. */
  def sendFramed(frames: Array[Byte]): Unit = answered {
    val from = ByteBuffer.wrap(frames)
    while (from.hasRemaining) {
      val topic = new String(bytes(from), UTF_8)
      val partition = from.getInt()
      val key, value = bytes(from)
      val headers = Array.fill[Header](from.getInt())(new RecordHeader(new String(bytes(from), UTF_8), bytes(from)))
      send(topic, if (partition < 0) null else partition, key, value, headers)
    }
  }

  /** The first error of a record of this transaction; null if there is none. */
  def failure: Exception = sent.failure.get

  /** Records that the broker has not acknowledged yet. */
  def left: Long = sent.left.get

  /** Waits until all records are acknowledged. Returns how many are not after `timeoutMs`. */
  def awaitAll(timeoutMs: Long): Long = answered {
    val left = sent.await(timeoutMs)
    if (failure != null) throw failure
    left
  }

  /** Adds a group's offsets to the transaction: lines of topic, partition and offset. `note`: kept with each of them. */
  def sendOffsets(group: String, lines: String, note: String): Unit = answered {
    val offsets = new HashMap[TopicPartition, OffsetAndMetadata]
    lines.linesIterator.map(_.split(' ')).foreach { case Array(topic, partition, offset) =>
      offsets.put(new TopicPartition(topic, partition.toInt), new OffsetAndMetadata(offset.toLong, note))
    }
    producer.sendOffsetsToTransaction(offsets, new ConsumerGroupMetadata(group))
  }

  /** Sends the last records, framed, and commits. An error that comes before Kafka is asked says so: `notCommitted`. */
  def commit(frames: Array[Byte], timeoutMs: Long): Unit = {
    try sendFramed(frames)
    catch {
      case error: Failed => throw new Failed(error.code, error.getMessage, error.retriable, notCommitted = true)
    }
    val left = sent.await(timeoutMs)
    if (failure != null) throw Failed.of(failure, notCommitted = true)
    if (left > 0)
      throw new Failed(Failed.TimedOut, s"$left records are not acknowledged", retriable = true, notCommitted = true)
    answered(producer.commitTransaction())
  }

  def abort(): Unit = answered(producer.abortTransaction())

  /** Ends the producer without waiting for anything: what is not acknowledged fails. Can be called from any thread. */
  def close(): Unit = {
    val closing = new Thread(() => producer.close(Duration.ZERO), "close-producer")
    closing.setDaemon(true)
    closing.start()
  }
}

object TransactionalProducer {
  private def answered[T](call: => T): T =
    try call
    catch { case error: Exception => throw Failed.of(error, notCommitted = false) }

  private def bytes(from: ByteBuffer): Array[Byte] = from.getInt() match {
    case length if length < 0 => null
    case length =>
      val found = new Array[Byte](length)
      from.get(found)
      found
  }

  /** The records of one transaction. */
  private final class Sent extends Callback {
    val left = new AtomicLong
    val failure = new AtomicReference[Exception]

    override def onCompletion(metadata: RecordMetadata, error: Exception): Unit = {
      if (error != null) failure.compareAndSet(null, error)
      if (left.decrementAndGet() == 0 || error != null) synchronized(notifyAll())
    }

    /** Waits until all are acknowledged, one has failed, or the time is over. Returns how many are left. */
    def await(timeoutMs: Long): Long = synchronized {
      val deadline = System.nanoTime() + MILLISECONDS.toNanos(timeoutMs)
      var waitMs = timeoutMs
      while (left.get > 0 && failure.get == null && waitMs > 0) {
        wait(waitMs)
        waitMs = NANOSECONDS.toMillis(deadline - System.nanoTime())
      }
      left.get
    }
  }
}

/**
 * An error of a producer. `code`: that of Kafka's protocol, or one below 0, which only librdkafka has. `notCommitted`: the
 * transaction is certainly not committed.
 */
final class Failed(val code: Int, message: String, val retriable: Boolean, val notCommitted: Boolean)
  extends RuntimeException(message)

object Failed {
  // librdkafka's codes of errors that have none in the protocol
  val TimedOut: Int = -185
  private val Login = -169
  private val State = -172
  private val Interrupted = -163
  private val Other = -196
  private val Unknown = Errors.UNKNOWN_SERVER_ERROR

  def of(error: Throwable, notCommitted: Boolean): Failed = error match {
    case failed: Failed => failed
    case _ =>
      // what failed first is below what Kafka's client says about its own state
      val known = Iterator.iterate(error)(_.getCause).takeWhile(_ != null).find(code(_) != Other)
      val named = known.getOrElse(error)
      val text = s"${named.getClass.getSimpleName}: ${named.getMessage}"
      new Failed(code(named), text, named.isInstanceOf[RetriableException], notCommitted)
  }

  private def codeOf(found: Errors): Int = if (found == Unknown) Other else found.code

  private def code(error: Throwable): Int = error match {
    case _: AuthenticationException => Login
    case _: TimeoutException => TimedOut
    case _: InterruptException | _: InterruptedException => Interrupted
    case _: IllegalStateException => State
    // the next transaction is another try
    case _: OutOfOrderSequenceException | _: UnknownProducerIdException | _: TransactionAbortableException => Other
    case _: ApiException => codeOf(Errors.forException(error))
    // the client says of some answers only what the protocol says
    case _: KafkaException if error.getMessage != null => codeOf(
      Errors.values.find(known => known != Errors.NONE && error.getMessage.endsWith(known.message)).getOrElse(Unknown))
    case _ => Other
  }
}
