// takes the place of Spark's trait of this name, because it comes first on the class path
package org.apache.spark.sql.execution.python.streaming

import java.net.{InetAddress, ServerSocket}

import scala.util.control.NonFatal

import org.apache.spark.internal.Logging

/**
 * The socket on which Spark gives an app in Python its state, without a login. Spark's own trait listens on all addresses;
 * this one listens on the loopback address alone. Python connects to localhost.
 */
trait TransformWithStateInPandasPythonRunnerUtils extends Logging {
  protected var stateServerSocketPort: Int = 0
  protected var stateServerSocket: ServerSocket = null

  protected def initStateServer(): Unit = {
    stateServerSocket = new ServerSocket(0, 1, InetAddress.getByName("127.0.0.1"))
    stateServerSocketPort = stateServerSocket.getLocalPort
  }

  protected def closeServerSocketChannelSilently(stateServerSocket: ServerSocket): Unit =
    try stateServerSocket.close()
    catch { case NonFatal(error) => logWarning("the socket of an app's state could not be closed", error) }
}
