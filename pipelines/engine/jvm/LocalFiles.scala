package io.switchyard

import java.nio.file.Files
import java.nio.file.attribute.PosixFilePermissions

import org.apache.hadoop.fs.{LocalFileSystem, Path, RawLocalFileSystem}
import org.apache.hadoop.fs.permission.FsPermission

/**
 * Hadoop's local files, whose permissions are set by a system call.
 *
 * Without its native library Hadoop starts a process, `chmod`, for each file that it makes: of every batch that is a dozen
 * for an app with state, and took a quarter of a small batch's time.
 */
class LocalFiles extends LocalFileSystem(new RawLocalFileSystem {
  override def setPermission(path: Path, permission: FsPermission): Unit = {
    // without the sticky bit, which a file here never has
    val bits = new FsPermission(permission.getUserAction, permission.getGroupAction, permission.getOtherAction)
    Files.setPosixFilePermissions(pathToFile(path).toPath, PosixFilePermissions.fromString(bits.toString))
  }
})
