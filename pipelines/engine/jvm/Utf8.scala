// in Spark's package: what makes a column of an expression is visible only there
package org.apache.spark.sql.switchyard

import org.apache.spark.sql.Column
import org.apache.spark.sql.catalyst.expressions.objects.StaticInvoke
import org.apache.spark.sql.classic.ExpressionUtils
import org.apache.spark.sql.types.{BinaryType, BooleanType}
import org.apache.spark.unsafe.Platform
import org.apache.spark.unsafe.types.UTF8String

/** Whether bytes are UTF-8, as Spark's `is_valid_utf8` decides, which looks at each byte. Here, eight at once may be ASCII. */
object Utf8 {
  private val NotAscii = 0x8080808080808080L

  /** A boolean for `bytes`, a binary column; null where that is null. */
  def column(bytes: Column): Column =
    ExpressionUtils.column(StaticInvoke(getClass, BooleanType, "isValid", Seq(ExpressionUtils.expression(bytes)), Seq(BinaryType)))

  def isValid(bytes: Array[Byte]): Boolean = {
    var at = 0
    while (at + 8 <= bytes.length && (Platform.getLong(bytes, Platform.BYTE_ARRAY_OFFSET + at) & NotAscii) == 0) at += 8
    while (at < bytes.length && bytes(at) >= 0) at += 1
    at == bytes.length || UTF8String.fromBytes(bytes, at, bytes.length - at).isValid
  }
}
