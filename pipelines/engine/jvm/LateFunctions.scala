// in Spark's package: its registry of internal functions is visible only there
package org.apache.spark.sql.switchyard

import java.net.URL
import java.util.{Collections, Enumeration}

import scala.jdk.CollectionConverters._

import org.apache.spark.sql.SparkSessionExtensionsProvider
import org.apache.spark.sql.catalyst.FunctionIdentifier
import org.apache.spark.sql.catalyst.analysis.FunctionRegistry
import org.apache.spark.sql.ml.InternalFunctionRegistration

/**
 * Spark's functions for machine learning, made when an app first uses one.
 *
 * Spark makes them when a session starts. That takes more than a second: nothing else there needs Scala's reflection.
 */
object LateFunctions {
  val names: Seq[String] = Seq("vector_to_array", "array_to_vector", "aggregate_metrics")

  private val Service = s"META-INF/services/${classOf[SparkSessionExtensionsProvider].getName}"

  /** Makes this thread start sessions without the functions, and registers them to be made later. */
  def enter(): Unit = {
    val thread = Thread.currentThread
    thread.setContextClassLoader(new Without(thread.getContextClassLoader))
    names.map(FunctionIdentifier(_)).filterNot(FunctionRegistry.internal.functionExists).foreach { name =>
      FunctionRegistry.internal.createOrReplaceTempFunction(name.funcName, arguments => {
        // replaces all of them
        InternalFunctionRegistration()
        FunctionRegistry.internal.lookupFunction(name, arguments)
      }, "internal")
    }
  }

  /** Ends what `enter` began in this thread. */
  def exit(): Unit = {
    val thread = Thread.currentThread
    thread.getContextClassLoader match {
      case hiding: Without => thread.setContextClassLoader(hiding.getParent)
      case _ =>
    }
  }

  /** Doesn't find that Spark's machine learning extends a session. Finds all other extensions. */
  private class Without(parent: ClassLoader) extends ClassLoader(parent) {
    override def getResources(name: String): Enumeration[URL] = {
      val found = super.getResources(name)
      if (name != Service) found
      else Collections.enumeration(Collections.list(found).asScala.filterNot(_.getPath.contains("/spark-mllib_")).asJava)
    }
  }
}
