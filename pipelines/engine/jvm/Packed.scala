// in Spark's package: what makes a column of an expression is visible only there
package org.apache.spark.sql.switchyard

import org.apache.spark.sql.Column
import org.apache.spark.sql.catalyst.InternalRow
import org.apache.spark.sql.catalyst.expressions.{Expression, UnaryExpression, UnsafeProjection, UnsafeRow}
import org.apache.spark.sql.catalyst.expressions.codegen.CodegenFallback
import org.apache.spark.sql.classic.ExpressionUtils
import org.apache.spark.sql.types.{BinaryType, DataType, StructType}

/** A struct as bytes: Spark's own form of a row, in which it also keeps its state. Equal structs give equal bytes. */
case class Packed(child: Expression) extends UnaryExpression with CodegenFallback {
  // it has a buffer, so each task needs its own
  override def stateful: Boolean = true
  override def nullable: Boolean = false
  override def dataType: DataType = BinaryType

  @transient private lazy val projection = UnsafeProjection.create(child.dataType.asInstanceOf[StructType])

  override def eval(input: InternalRow): Any =
    projection(child.eval(input).asInstanceOf[InternalRow]).copy().getBytes

  override protected def withNewChildInternal(newChild: Expression): Expression = copy(child = newChild)
}

object Packed {
  def column(struct: Column): Column = ExpressionUtils.column(Packed(ExpressionUtils.expression(struct)))
}

/** The struct that `Packed` made bytes of; null for no bytes. */
case class Unpacked(child: Expression, schema: StructType) extends UnaryExpression with CodegenFallback {
  override def nullable: Boolean = true
  override def dataType: DataType = schema

  override def eval(input: InternalRow): Any = child.eval(input) match {
    case bytes: Array[Byte] =>
      val row = new UnsafeRow(schema.length)
      row.pointTo(bytes, bytes.length)
      row
    case _ => null
  }

  override protected def withNewChildInternal(newChild: Expression): Expression = copy(child = newChild)
}

object Unpacked {
  def column(bytes: Column, schema: StructType): Column =
    ExpressionUtils.column(Unpacked(ExpressionUtils.expression(bytes), schema))
}
