# SPDX-License-Identifier: Apache-2.0
# In the virtual machine (nfs.py puts this before what it runs there): an NFS server and its clients, one in this network namespace,
# and two that are machines of their own as far as NFS knows. /srv/data: what the server has; /srv/mnt: where a mount is to be exported.
ip=/usr/sbin/ip

# The server's disk. Clients know by its change attribute that a file is another's now: a tmpfs has but the time, to a tick of the clock.
nfs_disk() {
    truncate -s 128M /srv/disk
    /sbin/mke2fs -q -t ext4 /srv/disk && mount -t ext4 -o loop,i_version /srv/disk /srv/data || echo "failed: no disk"
}

nfs_serve() {
    $ip link set lo up
    mkdir -p /srv /var/lib/nfs/v4recovery /run/netns /net
    mount -t tmpfs none /srv
    mkdir -p /srv/data /srv/mnt
    nfs_disk
    mount -t nfsd none /proc/fs/nfsd
    : >/var/lib/nfs/etab
    : >/var/lib/nfs/rmtab
    echo 10 >/proc/fs/nfsd/nfsv4leasetime
    echo 10 >/proc/fs/nfsd/nfsv4gracetime
    {
        echo "/srv *(rw,no_root_squash,insecure,no_subtree_check,fsid=0)"
        echo "/srv/data *(rw,no_root_squash,insecure,no_subtree_check,fsid=2)"
        echo "/srv/mnt *(rw,no_root_squash,insecure,no_subtree_check,fsid=1)"
    } >/etc/exports
    printf 'tcp 6 TCP\nudp 17 UDP\n' >/etc/protocols
    printf 'nfs 2049/tcp\nsunrpc 111/tcp\n' >/etc/services
    rpc.mountd -N 2 -N 3
    rpc.nfsd -N 3 4 || echo "failed: no NFS server"
    [ "$nfs_again" ] || echo Y >/proc/fs/nfsd/v4_end_grace
}

# nfs_unserve FOLDER: nothing is exported any more, and what is mounted there is unmounted. The server keeps files open for a while.
nfs_unserve() {
    exportfs -ua
    for n in $(seq 100); do
        exportfs -f
        umount "$1" 2>/dev/null && return
        sleep 0.2
    done
    echo "failed: $1 is busy"
    return 1
}

# nfs_client NAME NUMBER [,OPTIONS]: a machine of its own, at 10.1.NUMBER.2; it mounts the server's root at /net/NAME.
nfs_client() {
    mkdir -p "/net/$1"
    $ip netns add "$1"
    $ip link add "v$1" type veth peer name eth0 netns "$1"
    $ip addr add "10.1.$2.1/24" dev "v$1"
    $ip link set "v$1" up
    $ip -n "$1" addr add "10.1.$2.2/24" dev eth0
    $ip -n "$1" link set lo up
    $ip -n "$1" link set eth0 up
    # The server knows its clients by their hosts' names: what a second of the same name has is taken from the first.
    nsenter --net="/run/netns/$1" unshare -u sh -c "hostname $1; mount -t nfs4 -o vers=4.2,addr=10.1.$2.1,clientaddr=10.1.$2.2$3 10.1.$2.1:/ /net/$1" ||
        echo "failed: mount of $1"
}

# nfs_replaced MOUNT: a mount whose data directory a client has. The server gives a file's number to another one, of the same name.
nfs_replaced() {
    echo old >/srv/data/replaced
    number=$(ls -i /srv/data/replaced)
    cat "$1/replaced" >/tmp/replaced
    rm /srv/data/replaced
    for n in $(seq 100); do # until the server has closed it
        echo another >/srv/data/replaced
        [ "$(ls -i /srv/data/replaced)" = "$number" ] && break
        rm /srv/data/replaced
        sleep 0.1
    done
    sleep 3 # then the client asks the server
    cat "$1/replaced" >>/tmp/replaced
    [ "$(cat /tmp/replaced)" = "$(printf 'old\nanother')" ] && echo "nfs test a file that is replaced at the server: ok"
}
