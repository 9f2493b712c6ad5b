// in Spark's package: the metrics of a plan are visible only there
package org.apache.spark.sql.switchyard

import org.apache.spark.sql.execution.{QueryExecution, SparkPlan}
import org.json4s.JString
import org.json4s.jackson.JsonMethods.compact

/** What Spark counted in a batch that has just run. */
object Executed {

  /** Spark's name of the rows that a stateful operator dropped because the watermark had passed them. */
  private val Late = "numRowsDroppedByWatermark"

  /**
   * JSON: `late`, how many rows the operators of the batch dropped as late; `observed`, a map from the name of an
   * observation to its row. One text, because each call from Python takes longer than this whole method.
   */
  def metrics(batch: QueryExecution): String = {
    val observed = batch.observedMetrics.map { case (name, row) => s"${compact(JString(name))}:${row.json}" }
    s"""{"late":${late(batch.executedPlan)},"observed":${observed.mkString("{", ",", "}")}}"""
  }

  private def late(plan: SparkPlan): Long = plan.metrics.get(Late).fold(0L)(_.value) + plan.children.map(late).sum
}
