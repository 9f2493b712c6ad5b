package io.switchyard

import java.lang.management.ManagementFactory

import com.sun.management.HotSpotDiagnosticMXBean

/** How much of its heap this JVM keeps free after a collection. Java's option `MinHeapFreeRatio` is the least of it in percent,
  * `MaxHeapFreeRatio` the most.
  */
object Heap {
  private val Least = "MinHeapFreeRatio"
  private val Most = "MaxHeapFreeRatio"

  def least: Int = percent(Least)

  def most: Int = percent(Most)

  def keepFree(least: Int, most: Int): Unit =
    // Java refuses a least that is above the most
    for ((name, value) <- if (most < this.least) Seq(Least -> least, Most -> most) else Seq(Most -> most, Least -> least))
      options.setVMOption(name, value.toString)

  private def percent(name: String): Int = options.getVMOption(name).getValue.toInt

  private def options = ManagementFactory.getPlatformMXBean(classOf[HotSpotDiagnosticMXBean])
}
