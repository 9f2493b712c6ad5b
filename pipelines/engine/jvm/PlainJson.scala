// in Spark's package: what makes a column of an expression is visible only there
package org.apache.spark.sql.switchyard

import java.nio.charset.StandardCharsets.{ISO_8859_1, UTF_8}
import java.time.ZoneId

import scala.collection.mutable.ArrayBuffer

import com.fasterxml.jackson.core.{JsonFactory, JsonParser, JsonProcessingException, JsonToken}

import org.apache.spark.sql.Column
import org.apache.spark.sql.catalyst.InternalRow
import org.apache.spark.sql.catalyst.analysis.TypeCheckResult
import org.apache.spark.sql.catalyst.expressions.{Expression, GenericInternalRow, JsonToStructs, TimeZoneAwareExpression, UnaryExpression}
import org.apache.spark.sql.catalyst.expressions.codegen.{CodegenContext, ExprCode}
import org.apache.spark.sql.catalyst.json.JSONOptions
import org.apache.spark.sql.catalyst.util.{ArrayBasedMapData, CharVarcharUtils, DateTimeUtils, GenericArrayData}
import org.apache.spark.sql.classic.ExpressionUtils
import org.apache.spark.sql.internal.SQLConf
import org.apache.spark.sql.types._
import org.apache.spark.unsafe.types.UTF8String

/**
 * Spark's `from_json`, faster for plain records. `child` is a string.
 *
 * A record is plain if it is an object whose fields are what the schema says, without anything unusual. Such a record is
 * read from its bytes at once. Every other one is left to `from_json`, which makes a parser for each record. But three
 * kinds of values are malformed here, see `Refused`.
 */
case class PlainJson(
    child: Expression, schema: StructType, corrupt: String, timeZoneId: Option[String] = None)
  extends UnaryExpression with TimeZoneAwareExpression {
  override def nullable: Boolean = true
  override def prettyName: String = "from_json"
  override def withTimeZone(zone: String): TimeZoneAwareExpression = copy(timeZoneId = Option(zone))

  @transient private lazy val parser = JsonToStructs(
    schema, Map("mode" -> "PERMISSIVE", "columnNameOfCorruptRecord" -> corrupt, "allowNonNumericNumbers" -> "false"),
    child, timeZoneId)
  @transient private lazy val reader = new PlainReader(parser, corrupt)
  override def checkInputDataTypes(): TypeCheckResult = parser.checkInputDataTypes()
  override def dataType: DataType = parser.dataType

  override protected def nullSafeEval(json: Any): Any = reader.read(json.asInstanceOf[UTF8String])

  override protected def doGenCode(context: CodegenContext, made: ExprCode): ExprCode = {
    val reads = context.addReferenceObj("plain", reader, classOf[PlainReader].getName)
    nullSafeCodeGen(context, made, json => s"""
      ${made.value} = $reads.read($json);
      ${made.isNull} = ${made.value} == null;
    """)
  }

  override protected def withNewChildInternal(newChild: Expression): Expression = copy(child = newChild)
}

object PlainJson {
  /** As `from_json`. `schema`: as JSON, without the column `corrupt`, which gets the text of a malformed record. */
  def column(text: Column, schema: String, corrupt: String): Column = {
    val fields = CharVarcharUtils.failIfHasCharVarchar(DataType.fromJson(schema)).asInstanceOf[StructType]
    ExpressionUtils.column(PlainJson(ExpressionUtils.expression(text), fields.add(corrupt, StringType), corrupt))
  }

  /** Whether a record is plain, for tests. `ddl`: its columns. */
  def isPlain(json: String, ddl: String): Boolean = {
    val fields = new PlainFields(StructType.fromDDL(ddl), null, ZoneId.of("UTC"))
    fields.allKnown && fields.read(json.getBytes(UTF_8)) != null
  }
}

/** Reads plain records itself, and all others by `parser`. */
final class PlainReader(parser: JsonToStructs, corrupt: String) extends Serializable {
  private def schema = parser.schema.asInstanceOf[StructType]
  @transient private lazy val fields = new PlainFields(schema, corrupt, parser.zoneId)
  @transient private lazy val refused = new Refused(
    StructType(schema.filter(_.name != corrupt)),
    new JSONOptions(parser.options, parser.zoneId.getId).buildJsonFactory())

  def read(json: UTF8String): InternalRow = {
    val bytes = json.getBytes
    val plain = if (fields.allKnown) fields.read(bytes) else null
    if (plain != null) plain
    else if (refused.mayBeIn(bytes) && refused.areIn(json)) malformed(json)
    else parser.nullSafeEval(json).asInstanceOf[InternalRow]
  }

  private def malformed(json: UTF8String): InternalRow = {
    val values = new Array[Any](schema.length)
    values(schema.fieldIndex(corrupt)) = json
    new GenericInternalRow(values)
  }
}

/**
 * Finds values that are malformed although `from_json` reads them. `factory`: as `from_json` has it.
 *
 *  - A decimal with an exponent of more than four digits, or of over a thousand characters. `from_json` writes it out, which
 *    takes minutes and all of the memory for 1e600000000.
 *  - A timestamp without a date, such as 12:30. `from_json` takes the day on which it reads the record.
 *  - A text, or a key of a map, with half of a surrogate pair, such as the escape ud800. UTF-8 has no such character.
 *    `from_json` reads each of them as a question mark, so records of different keys would become one.
 */
private final class Refused(schema: StructType, factory: JsonFactory) {
  private val MaxExponentDigits = 4
  // Jackson's limit of a number that is no string
  private val MaxCharacters = 1000
  private val hasDecimals = schema.existsRecursively(_.isInstanceOf[DecimalType])
  private val hasTimestamps = schema.existsRecursively(_ == TimestampType)
  private val hasTexts = schema.existsRecursively {
    case _: StringType | _: MapType | VariantType => true
    case _ => false
  }

  /** Whether a record must be looked through: if its schema has timestamps, always. */
  def mayBeIn(json: Array[Byte]): Boolean =
    hasTimestamps || (hasDecimals && mayHaveExponent(json)) || (hasTexts && Refused.escapesHalf(json))

  /** Whether a record is long, or not ASCII, or has an escape of a letter, or what may be an exponent. */
  private def mayHaveExponent(json: Array[Byte]): Boolean = json.length > MaxCharacters || json.indices.exists { at =>
    val byte = json(at)
    byte < 0 || (byte == 'u' && at > 0 && json(at - 1) == '\\') ||
      ((byte == 'e' || byte == 'E') && at > 0 && '0' <= json(at - 1) && json(at - 1) <= '9')
  }

  /** Whether there is one before the record's end, or before what is no JSON: `from_json` stops there, too. */
  def areIn(json: UTF8String): Boolean = {
    val parser = factory.createParser(json.toString)
    try {
      parser.nextToken()
      isIn(parser, schema)
    } catch {
      case _: JsonProcessingException => false
    } finally parser.close()
  }

  /** Whether there is one in the value that starts at the parser's token. Reads to its end otherwise. */
  private def isIn(parser: JsonParser, kind: DataType): Boolean = (parser.currentToken, kind) match {
    case (JsonToken.START_OBJECT, fields: StructType) =>
      isInObject(parser)(name => fields.getFieldIndex(name).map(fields(_).dataType).getOrElse(NullType))
    case (JsonToken.START_OBJECT, MapType(_, of, _)) => isInObject(parser, namesAreRead = true)(_ => of)
    case (JsonToken.START_OBJECT, VariantType) => isInObject(parser, namesAreRead = true)(_ => VariantType)
    case (JsonToken.START_ARRAY, ArrayType(of, _)) => isInArray(parser, of)
    case (JsonToken.START_ARRAY, VariantType) => isInArray(parser, VariantType)
    // another value is read as its JSON text, which keeps the escape
    case (JsonToken.VALUE_STRING, _: StringType | VariantType) => Refused.hasHalf(parser.getText)
    case (token, _: DecimalType) if token != null && token.isScalarValue => isCostly(parser.getText)
    case (JsonToken.VALUE_STRING, TimestampType) => Refused.hasNoDate(parser.getText)
    case _ =>
      parser.skipChildren()
      false
  }

  private def isInObject(parser: JsonParser, namesAreRead: Boolean = false)(kindOf: String => DataType): Boolean = {
    var found = false
    while (!found && parser.nextToken() == JsonToken.FIELD_NAME) {
      val name = parser.currentName
      parser.nextToken()
      found = (namesAreRead && Refused.hasHalf(name)) || isIn(parser, kindOf(name))
    }
    found
  }

  private def isInArray(parser: JsonParser, of: DataType): Boolean = {
    var found = false
    while (!found && parser.nextToken() != JsonToken.END_ARRAY && parser.currentToken != null) found = isIn(parser, of)
    found
  }

  private def isCostly(decimal: String): Boolean = decimal.length > MaxCharacters || {
    val letter = math.max(decimal.lastIndexOf('e'), decimal.lastIndexOf('E'))
    // Spark leaves commas out
    letter >= 0 && decimal.drop(letter + 1).filterNot(",+-".contains(_)).length > MaxExponentDigits
  }
}

private object Refused {
  // after white space, which Spark leaves out, and a sign: the time starts, or its first part ends
  private val NoDate = "[\\s\\p{Cntrl}]*(T|[+-]?[0-9]+:).*".r.pattern

  /** Whether Spark may read a text as a time of the present day. It leaves `GMT` out. */
  def hasNoDate(time: String): Boolean = NoDate.matcher(time.replace("GMT", "")).matches()

  /** Whether a text has half of a surrogate pair. */
  def hasHalf(text: String): Boolean = text.codePoints.anyMatch(sign => isSurrogate(sign))

  /** Whether some string of a JSON text has half of a surrogate pair. In UTF-8, only an escape can be one. */
  def escapesHalf(json: Array[Byte]): Boolean = {
    var at = 0
    while (at < json.length) {
      if (json(at) != '\\') at += 1
      else {
        val unit = escaped(json, at)
        // such as \n, or a backslash
        if (unit < 0) at += 2
        else if (!isSurrogate(unit)) at += EscapeBytes
        else if (isPair(unit, escaped(json, at + EscapeBytes))) at += 2 * EscapeBytes
        else return true
      }
    }
    false
  }

  private val EscapeBytes = 6

  /** What an escape of four digits stands for; -1: there is none at this place. */
  private def escaped(json: Array[Byte], at: Int): Int = {
    if (at + EscapeBytes > json.length || json(at) != '\\' || json(at + 1) != 'u') return -1
    val digits = (at + 2 until at + EscapeBytes).map(place => Character.digit(json(place), 16))
    if (digits.contains(-1)) -1 else digits.reduce(_ * 16 + _)
  }

  private def isSurrogate(sign: Int): Boolean = Character.MIN_SURROGATE <= sign && sign <= Character.MAX_SURROGATE

  private def isPair(first: Int, second: Int): Boolean =
    second >= 0 && Character.isSurrogatePair(first.toChar, second.toChar)
}

/** The fields of a schema. `corrupt`: the name of the column that only `from_json` fills. */
final class PlainFields(schema: StructType, corrupt: String, zone: ZoneId) {
  import PlainFields._

  private val names = schema.fields.map(field => if (field.name == corrupt) null else field.name.getBytes(UTF_8))
  private val readers = schema.fields.map(field => reader(field.dataType))
  /** Whether this can read every field, and nothing asks for another way to read it. */
  val allKnown: Boolean = schema.length <= 63 && schema.fieldNames.distinct.length == schema.length &&
    !schema.exists(_.metadata.contains("EXISTS_DEFAULT")) && SQLConf.get.legacyTimeParserPolicy.toString != "LEGACY" &&
    readers.forall(_ != null)

  /** The row of a plain record; null: it is not plain. */
  def read(json: Array[Byte]): InternalRow = {
    val text = new Text(json)
    text.skipSpace()
    val row = readObject(text)
    text.skipSpace()
    row match {
      case found: InternalRow if text.atEnd => found
      case _ => null
    }
  }

  private def readObject(text: Text): Any = {
    val values = new Array[Any](names.length)
    // a bit for each field that was there; the field that comes next, if they come in order
    var seen = 0L
    var next = 0
    if (!text.take('{')) return Unusual
    text.skipSpace()
    var more = !text.take('}')
    while (more) {
      if (!text.nameOfValue()) return Unusual
      val field = find(text, next)
      if (field < 0) {
        if (!text.skipValue()) return Unusual
      } else {
        if ((seen & (1L << field)) != 0) return Unusual
        seen |= 1L << field
        next = field + 1
        val value = readValue(text, readers(field))
        if (!isUsual(value)) return Unusual
        values(field) = value
      }
      text.skipSpace()
      more = text.take(',')
      if (!more && !text.take('}')) return Unusual
      text.skipSpace()
    }
    new GenericInternalRow(values)
  }

  /** The number of the field whose name was just read, most often `likely`; -1: there is none. */
  private def find(text: Text, likely: Int): Int = {
    if (likely < names.length && text.is(names(likely))) return likely
    var field = 0
    while (field < names.length) {
      if (text.is(names(field))) return field
      field += 1
    }
    -1
  }

  /** What reads a value of a type; null: only `from_json` can. */
  private def reader(kind: DataType): Text => Any = kind match {
    case StringType => text => if (text.string()) text.readString() else Unusual
    case LongType => text => if (text.wholeNumber()) text.unscaled else Unusual
    case IntegerType => text => whole(text, Int.MinValue, Int.MaxValue, _.toInt)
    case ShortType => text => whole(text, Short.MinValue, Short.MaxValue, _.toShort)
    case ByteType => text => whole(text, Byte.MinValue, Byte.MaxValue, _.toByte)
    case DoubleType => text => if (text.number()) text.readDouble() else Unusual
    case decimal: DecimalType if decimal.precision <= Decimal.MAX_LONG_DIGITS =>
      text => if (text.number()) text.readDecimal(decimal) else Unusual
    case BooleanType => text => if (text.literal(True)) true else if (text.literal(False)) false else Unusual
    case TimestampType => text =>
      if (text.string() && text.ascii && text.startsWithDate)
        DateTimeUtils.stringToTimestamp(text.readAscii(), zone).getOrElse(Unusual)
      else Unusual
    case DateType => text =>
      if (text.string() && text.ascii) DateTimeUtils.stringToDate(text.readAscii()).getOrElse(Unusual) else Unusual
    case ArrayType(element, _) =>
      val read = reader(element)
      if (read == null) null else text => readArray(text, read)
    case MapType(StringType, value, _) =>
      val read = reader(value)
      if (read == null) null else text => readMap(text, read)
    case inner: StructType =>
      val fields = new PlainFields(inner, null, zone)
      if (fields.allKnown) text => fields.readObject(text) else null
    case _ => null
  }

  private def whole(text: Text, least: Long, most: Long, as: Long => Any): Any =
    if (text.wholeNumber() && least <= text.unscaled && text.unscaled <= most) as(text.unscaled) else Unusual

  private def readArray(text: Text, read: Text => Any): Any = {
    val values = ArrayBuffer.empty[Any]
    val plain = text.each('[', ']') {
      values += readValue(text, read)
      isUsual(values.last)
    }
    if (plain) new GenericArrayData(values.toArray) else Unusual
  }

  private def readMap(text: Text, read: Text => Any): Any = {
    val keys, values = ArrayBuffer.empty[Any]
    val plain = text.each('{', '}') {
      text.nameOfValue() && {
        val key = text.readAscii()
        val again = keys.length == MaxKeys || keys.contains(key)
        keys += key
        values += readValue(text, read)
        !again && isUsual(values.last)
      }
    }
    if (plain) new ArrayBasedMapData(new GenericArrayData(keys.toArray), new GenericArrayData(values.toArray)) else Unusual
  }
}

private object PlainFields {
  /** Instead of a value: the record is not plain. */
  private object Unusual
  // each key is compared with those before it
  private val MaxKeys = 50
  private val Null = "null".getBytes(UTF_8)
  private val True = "true".getBytes(UTF_8)
  private val False = "false".getBytes(UTF_8)
  // exact as doubles
  private val Powers = Array.tabulate(23)(n => java.lang.Double.parseDouble(s"1e$n"))
  private val LongPowers = Array.iterate(1L, Decimal.MAX_LONG_DIGITS + 1)(_ * 10)
  // digits that always fit in a long
  private val MaxDigits = 18
  // up to here, a double is exact
  private val ExactDigits = 15
  // far below the limits of Spark's parser
  private val MaxNameBytes = 1000
  private val MaxStringBytes = 1000000

  private def isUsual(value: Any): Boolean = value.asInstanceOf[AnyRef] ne Unusual

  private def readValue(text: Text, read: Text => Any): Any = if (text.literal(Null)) null else read(text)

  /** A JSON text and how far it is read. What was read last is from `from` to `to`. */
  private final class Text(bytes: Array[Byte]) {
    private var at, from, to = 0
    // of a string: whether it is ASCII; of a number: whether it has a sign
    var ascii, negative = false
    // of a number: all its digits as a whole number, how many of them are before and after the point
    var unscaled = 0L
    private var before, after = 0

    def atEnd: Boolean = at == bytes.length

    def skipSpace(): Unit =
      while (at < bytes.length && (bytes(at) == ' ' || bytes(at) == '\n' || bytes(at) == '\t' || bytes(at) == '\r')) at += 1

    def take(sign: Char): Boolean = {
      val there = at < bytes.length && bytes(at) == sign
      if (there) at += 1
      there
    }

    def literal(word: Array[Byte]): Boolean = {
      val end = at + word.length
      val there = end <= bytes.length && java.util.Arrays.equals(bytes, at, end, word, 0, word.length)
      if (there) at = end
      there
    }

    /** A string without escapes and control characters. */
    def string(): Boolean = {
      if (!take('"')) return false
      from = at
      ascii = true
      while (at < bytes.length) {
        val byte = bytes(at)
        if (byte == '"') {
          to = at
          at += 1
          return to - from <= MaxStringBytes
        }
        if (byte < 0) ascii = false
        else if (byte < ' ' || byte == '\\') return false
        at += 1
      }
      false
    }

    /** A name and what follows it, up to the value. */
    def nameOfValue(): Boolean = string() && ascii && to - from <= MaxNameBytes && {
      skipSpace()
      take(':')
    } && {
      skipSpace()
      true
    }

    /** Whether items stand between the two signs, with commas between them. `item` reads one. */
    def each(open: Char, close: Char)(item: => Boolean): Boolean = {
      if (!take(open)) return false
      skipSpace()
      var more = !take(close)
      while (more) {
        if (!item) return false
        skipSpace()
        more = take(',')
        if (!more && !take(close)) return false
        skipSpace()
      }
      true
    }

    def is(name: Array[Byte]): Boolean =
      name != null && to - from == name.length && java.util.Arrays.equals(bytes, from, to, name, 0, name.length)

    def readAscii(): UTF8String = UTF8String.fromBytes(bytes, from, to - from)

    /** Whether a string starts with a year, and not with an hour. */
    def startsWithDate: Boolean = {
      var end = from
      while (end < to && bytes(end) >= '0' && bytes(end) <= '9') end += 1
      end > from && (end == to || bytes(end) != ':')
    }

    def readString(): Any = {
      val found = readAscii()
      if (ascii || found.isValid) found else Unusual
    }

    /** A number without an exponent, of at most 18 digits. */
    def number(): Boolean = {
      from = at
      negative = take('-')
      unscaled = 0
      val first = at
      digits()
      before = at - first
      if (before == 0 || (before > 1 && bytes(first) == '0')) return false
      after = 0
      if (take('.')) {
        val point = at
        digits()
        after = at - point
        if (after == 0) return false
      }
      to = at
      if (negative) unscaled = -unscaled
      before + after <= MaxDigits && (at == bytes.length || (bytes(at) != 'e' && bytes(at) != 'E'))
    }

    def wholeNumber(): Boolean = number() && to - from == before + (if (negative) 1 else 0)

    private def digits(): Unit =
      while (at < bytes.length && bytes(at) >= '0' && bytes(at) <= '9') {
        unscaled = unscaled * 10 + (bytes(at) - '0')
        at += 1
      }

    def readDouble(): Double =
      if (after == 0) unscaled.toDouble
      else if (before + after <= ExactDigits) {
        val found = math.abs(unscaled) / Powers(after)
        if (negative) -found else found
      } else java.lang.Double.parseDouble(new String(bytes, from, to - from, ISO_8859_1))

    def readDecimal(kind: DecimalType): Any = {
      val whole = if (before == 1 && bytes(if (negative) from + 1 else from) == '0') 0 else before
      if (after > kind.scale || whole > kind.precision - kind.scale) Unusual
      else Decimal.createUnsafe(unscaled * LongPowers(kind.scale - after), kind.precision, kind.scale)
    }

    /** Passes over a value that nobody asked for: a string, a number or a literal. */
    def skipValue(): Boolean =
      if (at < bytes.length && bytes(at) == '"') string() && readString() != Unusual
      else literal(Null) || literal(True) || literal(False) || number()
  }
}
