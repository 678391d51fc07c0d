#!/bin/sh
# Gives a host, which has mounts of its own already, a root of its own: that of this machine, but
# what the host changes stays in its memory. Arguments: folders on other file systems, to be shared.
set -e
mount -t tmpfs tmpfs /mnt
mkdir /mnt/changes /mnt/work /mnt/root
mount -t overlay overlay -o lowerdir=/,upperdir=/mnt/changes,workdir=/mnt/work /mnt/root
for shared in /proc /sys /dev "$@"; do
  mkdir -p "/mnt/root$shared"
  mount --rbind "$shared" "/mnt/root$shared"
done
cd /mnt/root
pivot_root . mnt
cd /
umount -l /mnt
