package io.switchyard

import java.nio.file.Files
import java.nio.file.attribute.PosixFilePermissions

import org.apache.hadoop.fs.{LocalFileSystem, Path, RawLocalFileSystem}
import org.apache.hadoop.fs.permission.FsPermission

/**
 * Hadoop's local files, with permissions set by a system call.
 *
 * Without its native library, Hadoop starts a `chmod` process for each file that it creates. For an app with state that is
 * a dozen per batch, and it took a quarter of a small batch's time.
 */
class LocalFiles extends LocalFileSystem(new RawLocalFileSystem {
  override def setPermission(path: Path, permission: FsPermission): Unit = {
    // without the sticky bit, which no file here has
    val bits = new FsPermission(permission.getUserAction, permission.getGroupAction, permission.getOtherAction)
    Files.setPosixFilePermissions(pathToFile(path).toPath, PosixFilePermissions.fromString(bits.toString))
  }
})
