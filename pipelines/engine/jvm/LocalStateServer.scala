// takes the place of Spark's trait of this name, because it comes first on the class path
package org.apache.spark.sql.execution.python.streaming

import java.io.{FilterInputStream, IOException, InputStream}
import java.net.{InetAddress, ServerSocket, Socket, SocketTimeoutException}
import java.nio.charset.StandardCharsets.US_ASCII
import java.security.{MessageDigest, SecureRandom}
import java.util.concurrent.TimeUnit.{MILLISECONDS, NANOSECONDS}

import scala.util.control.NonFatal

import org.apache.spark.internal.Logging

/**
 * The socket on which Spark gives an app in Python its state. Spark's own trait listens on all addresses, and accepts whoever
 * connects first; see LocalStateSocket. Python connects to localhost.
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
 * Listens on the loopback address, and accepts only clients that send the secret. Spark's server takes the first connection
 * for that of its worker. If another client connected first, such as a Kafka client that looks for a broker which had this
 * port before, the worker would wait for an answer for ever.
 *
 * Spark's server also takes what it reads at once for a whole message, but its buffered stream ends a read where nothing is
 * available yet, which may be in the middle of one. Here there is always more to wait for.
 */
class LocalStateSocket(secretTimeoutMs: Int) extends ServerSocket(0, 50, InetAddress.getByName("127.0.0.1")) with Logging {
  // a worker sends the secret as soon as it has connected; the limit leaves time for a machine that stalls
  def this() = this(5000)

  override def accept(): Socket = {
    var socket = connected()
    while (!LocalStateSocket.admits(socket, secretTimeoutMs)) {
      logWarning(s"refused a connection to the state of an app: what came from port ${socket.getPort} is not the secret")
      try socket.close()
      catch { case _: IOException => }
      socket = connected()
    }
    socket
  }

  private def connected(): Socket = {
    val socket = new Socket {
      override def getInputStream: InputStream = new FilterInputStream(super.getInputStream) {
        override def available(): Int = math.max(1, super.available())
      }
    }
    implAccept(socket)
    socket
  }
}

object LocalStateSocket {
  // no other protocol begins like this, so a client of another one is refused at its first byte
  private val greeting = "switchyard "

  /** What a worker sends first. Workers know it from their environment, and so does the JVM of an executor: it is the driver's. */
  val secret: String = Option(System.getenv("SWITCHYARD_STATE_SECRET")).filter(_.startsWith(greeting)).getOrElse {
    val bytes = new Array[Byte](32)
    new SecureRandom().nextBytes(bytes)
    greeting + bytes.map("%02x".format(_)).mkString
  }

  private def admits(socket: Socket, timeoutMs: Int): Boolean =
    try {
      val deadline = System.nanoTime() + MILLISECONDS.toNanos(timeoutMs)
      val stream = socket.getInputStream

      def next(): Int = {
        val leftMs = NANOSECONDS.toMillis(deadline - System.nanoTime()).toInt
        if (leftMs <= 0) throw new SocketTimeoutException
        socket.setSoTimeout(leftMs)
        stream.read()
      }
      greeting.forall(_ == next()) && {
        val rest = Array.fill(secret.length - greeting.length)(next().toByte)
        socket.setSoTimeout(0)
        MessageDigest.isEqual(rest, secret.drop(greeting.length).getBytes(US_ASCII))
      }
    } catch { case _: IOException => false }
}
