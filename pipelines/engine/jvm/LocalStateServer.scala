// takes the place of Spark's trait of this name, because it comes first on the class path
package org.apache.spark.sql.execution.python.streaming

import java.io.{FilterInputStream, InputStream}
import java.net.{InetAddress, ServerSocket, Socket}

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
    stateServerSocket = new LocalStateSocket
    stateServerSocketPort = stateServerSocket.getLocalPort
  }

  protected def closeServerSocketChannelSilently(stateServerSocket: ServerSocket): Unit =
    try stateServerSocket.close()
    catch { case NonFatal(error) => logWarning("the socket of an app's state could not be closed", error) }
}

/**
 * Listens on the loopback address. Spark's server takes what it reads at once for a whole message, but its buffered stream
 * ends a read where nothing is available yet, which may be in the middle of one. Here there is always more to wait for.
 */
class LocalStateSocket extends ServerSocket(0, 1, InetAddress.getByName("127.0.0.1")) {
  override def accept(): Socket = {
    val socket = new Socket {
      override def getInputStream: InputStream = new FilterInputStream(super.getInputStream) {
        override def available(): Int = math.max(1, super.available())
      }
    }
    implAccept(socket)
    socket
  }
}
