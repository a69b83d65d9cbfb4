# SPDX-License-Identifier: Apache-2.0
# In each machine of cluster.py ($machine: a, b or server; $number: the last byte of its address), after nfs.sh.
cluster_network() {
    hostname "$machine"
    $ip link set lo up
    $ip link set eth0 mtu 4500 up
    $ip addr add "10.0.0.$number/24" dev eth0
    rdma link add rxe0 type rxe netdev eth0 || echo "failed: no rxe0"
    for n in $(seq 50); do
        ping -q -c 1 -W 1 "10.0.0.$server" >/dev/null && return
    done
    echo "failed: no network"
}

# The server's disk outlives the machine, and so does what the server must know of its clients to give them back what they have locked. A
# server that is started anew ($nfs_again) waits for them first.
nfs_disk() {
    mkdir -p /disk
    mount -t ext4 -o i_version /dev/vda /disk && nfs_again=1 || {
        /sbin/mke2fs -q -t ext4 /dev/vda && mount -t ext4 -o i_version /dev/vda /disk || echo "failed: no disk"
        mkdir /disk/data /disk/v4recovery
    }
    mount -o bind /disk/data /srv/data
    mount -o bind /disk/v4recovery /var/lib/nfs/v4recovery
}

# Pages that are stored to are written back at once, as rdma_nodes.py has it.
cluster_flushes() {
    echo 1 >/proc/sys/vm/dirty_writeback_centisecs
    echo 1 >/proc/sys/vm/dirty_expire_centisecs
    echo 4096 >/proc/sys/vm/dirty_background_bytes
}

cluster_data() {
    mkdir -p /net /mnt/gaia
    mount -t nfs4 -o "vers=4.2,actimeo=0,addr=10.0.0.$server,clientaddr=10.0.0.$number" "10.0.0.$server:/data" /net || echo "failed: no NFS"
    cluster_flushes
}

# A shell runs what comes through the serial port of that name, one line after the other.
cluster_obey() {
    exec 3<>/dev/ports/shell
    echo ready >&3
    sh <&3 >&3 2>&1
}
