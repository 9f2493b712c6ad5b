// in Spark's package: what makes a column of an expression is visible only there
package org.apache.spark.sql.switchyard

import java.nio.charset.StandardCharsets.{ISO_8859_1, UTF_8}
import java.time.LocalDate
import java.util.Arrays

import org.apache.spark.sql.{classic, Column}
import org.apache.spark.sql.catalyst.InternalRow
import org.apache.spark.sql.catalyst.analysis.TypeCheckResult
import org.apache.spark.sql.catalyst.expressions.{Expression, SpecializedGetters, StructsToJson, TimeZoneAwareExpression, UnaryExpression}
import org.apache.spark.sql.catalyst.expressions.codegen.{CodegenContext, ExprCode}
import org.apache.spark.sql.catalyst.expressions.json.StructsToJsonEvaluator
import org.apache.spark.sql.classic.ExpressionUtils
import org.apache.spark.sql.types._
import org.apache.spark.unsafe.Platform
import org.apache.spark.unsafe.types.UTF8String

/**
 * Spark's `to_json` with null fields, faster for plain rows. `child` is a struct.
 *
 * A row is plain if its values are of the common types, without anything unusual. The text of such a row is written as
 * bytes at once. Every other one is left to `to_json`, which writes characters and encodes them afterwards.
 */
case class JsonText(child: Expression, timeZoneId: Option[String] = None)
  extends UnaryExpression with TimeZoneAwareExpression {
  override def nullable: Boolean = true
  override def prettyName: String = "to_json"
  override def withTimeZone(zone: String): TimeZoneAwareExpression = copy(timeZoneId = Option(zone))

  @transient private lazy val spark = StructsToJson(JsonText.Options, child, timeZoneId)
  @transient private lazy val writer = new TextWriter(
    child.dataType.asInstanceOf[StructType], StructsToJsonEvaluator(JsonText.Options, child.dataType, timeZoneId))
  override def checkInputDataTypes(): TypeCheckResult = spark.checkInputDataTypes()
  override def dataType: DataType = spark.dataType

  override protected def nullSafeEval(row: Any): Any = writer.write(row.asInstanceOf[InternalRow])

  override protected def doGenCode(context: CodegenContext, made: ExprCode): ExprCode = {
    val writes = context.addReferenceObj("text", writer, classOf[TextWriter].getName)
    defineCodeGen(context, made, row => s"$writes.write($row)")
  }

  override protected def withNewChildInternal(newChild: Expression): Expression = copy(child = newChild)
}

object JsonText {
  private val Options = Map("ignoreNullFields" -> "false")

  /** As `to_json` of a struct, with null fields. */
  def column(struct: Column): Column = ExpressionUtils.column(JsonText(ExpressionUtils.expression(struct)))

  /** How many rows of a frame are plain, for tests. */
  def plainRows(frame: classic.DataFrame): Long = {
    val schema = frame.schema
    frame.queryExecution.toRdd.mapPartitions { rows =>
      val fields = new TextFields(schema)
      rows.filter(row => fields.allKnown && fields.write(row, new Text(0)))
    }.count()
  }
}

/** Writes plain rows itself, and all others by `spark`. */
final class TextWriter(schema: StructType, spark: StructsToJsonEvaluator) extends Serializable {
  @transient private lazy val fields = new TextFields(schema)
  // of the last text, in bytes: the next one is most likely as long
  @transient private var likely = 0

  def write(row: InternalRow): UTF8String = {
    if (fields.allKnown) {
      val text = new Text(likely + 32)
      if (fields.write(row, text)) {
        likely = text.length
        return text.result
      }
    }
    spark.evaluate(row).asInstanceOf[UTF8String]
  }
}

/** The fields of a struct. */
private final class TextFields(schema: StructType) {
  import TextFields._

  // before each value: its name, after a comma or the first brace
  private val names = schema.fields.zipWithIndex.map { case (field, number) =>
    val name = new Text(field.name.length + 8)
    name.put(if (number == 0) '{' else ',')
    if (name.string(UTF8String.fromString(field.name))) {
      name.put(':')
      name.result.getBytes
    } else null
  }
  private val writers = schema.fields.map(field => writer(field.dataType))
  /** Whether this can write every field. */
  val allKnown: Boolean = schema.nonEmpty && names.forall(_ != null) && writers.forall(_ != null)

  /** Returns whether they were plain. */
  def write(row: InternalRow, text: Text): Boolean = {
    var field = 0
    while (field < writers.length) {
      text.put(names(field))
      if (!value(row, field, text, writers(field))) return false
      field += 1
    }
    text.put('}')
    true
  }
}

private object TextFields {
  /** Writes a value that is not null. Returns whether it was plain. */
  private type Writer = (SpecializedGetters, Int, Text) => Boolean

  private val Null = "null".getBytes(UTF_8)
  private val True = "true".getBytes(UTF_8)
  private val False = "false".getBytes(UTF_8)
  // up to here, a decimal is never written with an exponent
  private val MaxScale = 6

  private def value(row: SpecializedGetters, at: Int, text: Text, write: Writer): Boolean =
    if (row.isNullAt(at)) text.put(Null) else write(row, at, text)

  /** What writes a value of a type; null: only `to_json` can. */
  private def writer(kind: DataType): Writer = kind match {
    case StringType => (row, at, text) => text.string(row.getUTF8String(at))
    case LongType => (row, at, text) => text.whole(row.getLong(at))
    case IntegerType => (row, at, text) => text.whole(row.getInt(at))
    case ShortType => (row, at, text) => text.whole(row.getShort(at))
    case ByteType => (row, at, text) => text.whole(row.getByte(at))
    case BooleanType => (row, at, text) => text.put(if (row.getBoolean(at)) True else False)
    case DoubleType => (row, at, text) =>
      val number = row.getDouble(at)
      java.lang.Double.isFinite(number) && text.put(java.lang.Double.toString(number).getBytes(ISO_8859_1))
    case FloatType => (row, at, text) =>
      val number = row.getFloat(at)
      java.lang.Float.isFinite(number) && text.put(java.lang.Float.toString(number).getBytes(ISO_8859_1))
    case DecimalType.Fixed(precision, scale) => (row, at, text) =>
      val number = row.getDecimal(at, precision, scale)
      if (precision <= Decimal.MAX_LONG_DIGITS && 0 <= scale && scale <= MaxScale && number.scale == scale)
        text.decimal(number.toUnscaledLong, scale)
      else text.put(number.toJavaBigDecimal.toString.getBytes(ISO_8859_1))
    case DateType => (row, at, text) => text.date(LocalDate.ofEpochDay(row.getInt(at)))
    case ArrayType(element, _) =>
      val write = writer(element)
      if (write == null) null else (row, at, text) => {
        val values = row.getArray(at)
        text.each('[', ']', values.numElements())(value(values, _, text, write))
      }
    case MapType(StringType, element, _) =>
      val write = writer(element)
      if (write == null) null else (row, at, text) => {
        val map = row.getMap(at)
        val (keys, values) = (map.keyArray(), map.valueArray())
        text.each('{', '}', keys.numElements()) { number =>
          text.string(keys.getUTF8String(number)) && text.put(':') && value(values, number, text, write)
        }
      }
    case inner: StructType =>
      val fields = new TextFields(inner)
      if (fields.allKnown) (row, at, text) => fields.write(row.getStruct(at, inner.length), text) else null
    case _ => null
  }
}

/** A JSON text in UTF-8, at first with room for `room` bytes. What writes to it returns whether the value was plain. */
private final class Text(room: Int) {
  private var bytes = new Array[Byte](room)
  var length = 0

  def result: UTF8String = UTF8String.fromBytes(bytes, 0, length)

  private def need(more: Int): Unit =
    if (bytes.length - length < more) bytes = Arrays.copyOf(bytes, math.max(2 * bytes.length, length + more))

  def put(sign: Char): Boolean = {
    need(1)
    bytes(length) = sign.toByte
    length += 1
    true
  }

  def put(more: Array[Byte]): Boolean = {
    need(more.length)
    System.arraycopy(more, 0, bytes, length, more.length)
    length += more.length
    true
  }

  /** `count` items with commas between them. */
  def each(open: Char, close: Char, count: Int)(item: Int => Boolean): Boolean = {
    put(open)
    var number = 0
    while (number < count) {
      if (number > 0) put(',')
      if (!item(number)) return false
      number += 1
    }
    put(close)
  }

  /** A string of valid UTF-8. */
  def string(value: UTF8String): Boolean = {
    put('"')
    val (from, to) = (length, length + value.numBytes)
    need(value.numBytes)
    value.writeToMemory(bytes, Platform.BYTE_ARRAY_OFFSET + from)
    var at = from
    var plain, ascii = true
    while (at < to && plain) {
      val byte = bytes(at)
      if (byte < 0) ascii = false
      else if (byte < ' ' || byte == '"' || byte == '\\') plain = false
      at += 1
    }
    if (plain) length = to else escaped(Arrays.copyOfRange(bytes, from, to))
    put('"')
    (plain && ascii) || value.isValid
  }

  /** A string, with escapes as Jackson writes them. */
  private def escaped(value: Array[Byte]): Unit = value.foreach { byte =>
    if (byte == '"' || byte == '\\' || (0 <= byte && byte < ' ')) put(Text.Escapes(byte)) else put(byte.toChar)
  }

  def whole(value: Long): Boolean = decimal(value, 0)

  /** `unscaled` with a point before its last `scale` digits. */
  def decimal(unscaled: Long, scale: Int): Boolean = {
    // Long.MinValue has no positive counterpart
    var left = if (unscaled < 0) unscaled else -unscaled
    val digits = math.max(Text.digits(left), scale + 1)
    if (unscaled < 0) put('-')
    val size = if (scale > 0) digits + 1 else digits
    need(size)
    length += size
    var at = length - 1
    var number = 0
    while (number < digits) {
      if (number == scale && scale > 0) {
        bytes(at) = '.'
        at -= 1
      }
      bytes(at) = ('0' - left % 10).toByte
      left /= 10
      at -= 1
      number += 1
    }
    true
  }

  /** A date with a year of four digits. */
  def date(value: LocalDate): Boolean = {
    val plain = 1000 <= value.getYear && value.getYear <= 9999
    plain && put('"') && whole(value.getYear) && put('-') && two(value.getMonthValue) && put('-') &&
      two(value.getDayOfMonth) && put('"')
  }

  private def two(value: Int): Boolean = put(('0' + value / 10).toChar) && put(('0' + value % 10).toChar)
}

private object Text {
  private val Short = Map('"' -> '"', '\\' -> '\\', '\b' -> 'b', '\t' -> 't', '\n' -> 'n', '\f' -> 'f', '\r' -> 'r')
  private val Escapes = Array.tabulate('\\' + 1) { sign =>
    Short.get(sign.toChar).map(short => s"\\$short").getOrElse("\\u%04X".format(sign)).getBytes(UTF_8)
  }

  /** How many digits a number has that is not above 0. */
  private def digits(negative: Long): Int = {
    var (count, limit) = (1, -10L)
    while (count < 19 && negative <= limit) {
      count += 1
      limit *= 10
    }
    count
  }
}
