// in Spark's package: its class of all whole-number types is visible only there
package org.apache.spark.sql.switchyard

import org.apache.spark.sql.SparkSessionExtensions
import org.apache.spark.sql.catalyst.expressions._
import org.apache.spark.sql.catalyst.expressions.aggregate._
import org.apache.spark.sql.catalyst.rules.Rule
import org.apache.spark.sql.execution.{ColumnarRule, ExpandExec, ProjectExec, SparkPlan}
import org.apache.spark.sql.execution.aggregate.HashAggregateExec
import org.apache.spark.sql.types._

/**
 * Sums the rows of a batch up before they go into sliding windows.
 *
 * Spark copies each row into all windows that have it, and then sums up. Here, rows are first summed up by pane: the time
 * from the start of a window to that of the next. Then the sums are copied into the windows. So a window of 5 s that
 * advances by 1 s costs one update for each row instead of five. Li et al., "No pane, no gain", SIGMOD Record 34(1), 2005.
 *
 * Only what comes before Spark's shuffle changes: state, checkpoints, and the order of stateful operators stay as they are.
 * Aggregates whose result depends on the order of rows, as sums of doubles do, are left to Spark.
 */
class Panes extends (SparkSessionExtensions => Unit) {
  override def apply(extensions: SparkSessionExtensions): Unit = extensions.injectColumnar(_ => new ColumnarRule { override def preColumnarTransitions: Rule[SparkPlan] = Panes })
}

object Panes extends Rule[SparkPlan] {
  /** A session's property: "false" leaves all plans as Spark makes them. Plans that are not compiled stay so anyway. */
  val Property = "spark.sql.switchyard.panes"

  override def apply(plan: SparkPlan): SparkPlan =
    // interpreted plans are for few rows
    if (!conf.wholeStageEnabled || conf.getConfString(Property, "true") != "true") plan
    else plan.transform { case partial: HashAggregateExec => inPanes(partial).getOrElse(partial) }

  private def inPanes(partial: HashAggregateExec): Option[SparkPlan] = partial match {
    case HashAggregateExec(None, true, _, grouping, aggregates, _, 0, _, child)
        if aggregates.nonEmpty && aggregates.forall(isExact) =>
      for {
        (expand, columns) <- expansion(child)
        (window, windows) <- windowsOf(expand)
        (keys, others) = (grouping.filterNot(is(window)), columns.filterNot(is(window)))
        if keys.size + 1 == grouping.size && others.size + 1 == columns.size
        if (keys ++ others ++ aggregates).forall(each => each.deterministic && !each.references.contains(window))
      } yield merged(partial, below(expand, others, timeOf(windows.head).get), window, windows, keys)
    case _ => None
  }

  private def is(window: Attribute)(found: NamedExpression): Boolean = found.exprId == window.exprId

  /** The `Expand` that a plan reads, and the columns that the plan makes of it. */
  private def expansion(plan: SparkPlan): Option[(ExpandExec, Seq[NamedExpression])] = plan match {
    case expand: ExpandExec => Some((expand, expand.output))
    case ProjectExec(columns, expand: ExpandExec) => Some((expand, columns))
    case _ => None
  }

  /** The rows that go into windows, with `columns` and their time. */
  private def below(expand: ExpandExec, columns: Seq[NamedExpression], time: Attribute): SparkPlan = {
    val all = columns ++ Seq(time).filterNot(each => columns.exists(_.exprId == each.exprId))
    if (all.forall(_.isInstanceOf[Attribute])) expand.child else ProjectExec(all, expand.child)
  }

  /** Sums up `rows` by key and pane, copies the sums into the windows, and merges them there. Same output as `partial`. */
  private def merged(
      partial: HashAggregateExec,
      rows: SparkPlan,
      window: Attribute,
      windows: Seq[CreateNamedStruct],
      keys: Seq[NamedExpression]): SparkPlan = {
    val (aggregates, time) = (partial.aggregateExpressions, timeOf(windows.head).get)
    val pane = Alias(startOf(windows.head), "pane")()
    val (named, buffers) = (keys.map(_.toAttribute), aggregates.flatMap(_.aggregateFunction.inputAggBufferAttributes))
    val byPane = partial.copy(
      groupingExpressions = keys :+ pane,
      resultExpressions = (named :+ pane.toAttribute) ++ buffers,
      child = rows)
    // a pane's start is in the same windows as all of its times
    val ofPane = windows.map(_.transform { case a: Attribute if a.exprId == time.exprId => pane.toAttribute })
    val inWindows = ExpandExec(ofPane.map(each => (named :+ each) ++ buffers), (named :+ window) ++ buffers, byPane)
    partial.copy(
      groupingExpressions = partial.groupingExpressions.map(_.toAttribute),
      aggregateExpressions = aggregates.map(_.copy(mode = PartialMerge)),
      // buffers come after the keys
      initialInputBufferOffset = named.size + 1,
      child = inWindows)
  }

  /** Whether an aggregate has the same result, bit by bit, in whatever order it sees its rows. */
  private def isExact(aggregate: AggregateExpression): Boolean =
    aggregate.mode == Partial && !aggregate.isDistinct && aggregate.filter.isEmpty && (aggregate.aggregateFunction match {
      case _: Count => true
      case _: Min | _: Max | _: Sum | _: Average => aggregate.aggregateFunction.children.forall(_.dataType match {
          case _: IntegralType | _: DecimalType | BooleanType | DateType | TimestampType | TimestampNTZType => true
          case _ => false
        })
      case _ => false
    })

  /** The column of an `Expand` that copies each row into sliding windows, and the windows, if a whole number of panes is a window. */
  private def windowsOf(expand: ExpandExec): Option[(Attribute, Seq[CreateNamedStruct])] = {
    def isGiven(column: Int): Boolean = expand.projections.forall(_(column) match {
      case a: Attribute => a.exprId == expand.output(column).exprId
      case _ => false
    })
    expand.output.indices.filterNot(isGiven) match {
      case Seq(column) =>
        val windows = expand.projections.map(_(column)).collect { case window: CreateNamedStruct => window }
        if (windows.size == expand.projections.size && slide(windows)) Some((expand.output(column), windows)) else None
      case _ => None
    }
  }

  /** Whether these are the sliding windows of one time, the last to start first, each a whole number of panes. */
  private def slide(windows: Seq[CreateNamedStruct]): Boolean = {
    val times = windows.map(timeOf)
    windows.size > 1 && times.forall(_.isDefined) && times.flatten.map(_.exprId).distinct.size == 1 && {
      val (start, end) = bounds(windows.head, 0)
      val pane = start - bounds(windows(1), 0)._1
      pane > 0 && end - start == pane * windows.size && Seq(0L, -1L, 1L, pane - 1, pane, 7 * pane + pane / 2, -3 * pane).forall { at =>
        val (first, _) = bounds(windows.head, at)
        first <= at && at < first + pane && windows.zipWithIndex.forall { case (window, n) =>
          bounds(window, at) == (first - n * pane, first + (windows.size - n) * pane)
        }
      }
    }
  }

  private def startOf(window: CreateNamedStruct): Expression = window.valExprs.head

  /** The only column that a window depends on, if it is a time. */
  private def timeOf(window: CreateNamedStruct): Option[Attribute] = window.references.toSeq match {
    case Seq(time) if window.valExprs.size == 2 && window.deterministic && isTime(time.dataType) => Some(time)
    case _ => None
  }

  private def isTime(kind: DataType): Boolean = kind == TimestampType || kind == TimestampNTZType

  /** Start and end of the window of a time, all in microseconds. */
  private def bounds(window: CreateNamedStruct, at: Long): (Long, Long) = {
    val Seq(start, end) = window.valExprs.map(_.transform { case a: Attribute => Literal(at, a.dataType) }.eval())
    (start.asInstanceOf[Long], end.asInstanceOf[Long])
  }
}
