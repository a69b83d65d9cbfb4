# SPDX-License-Identifier: Apache-2.0
# In the virtual machine (rdma_nodes.py puts this before what it runs there): two nodes, a on rxe0 and b on rxe1, with mounts /tmp/a and
# /tmp/b of /tmp/data (or of $nodes_data). pid_a, pid_b: their daemons.
nodes_peers=peers=a@10.0.0.1:7500/b@10.0.1.1:7500

# What every thread of the daemons and of the tests' programs waits for.
nodes_stacks() {
    for pid in $(pidof mount.gaiafs tool_nodes tool_survive); do
        for task in /proc/$pid/task/*; do
            echo "stack $task $(cat $task/comm) $(cat $task/wchan): $(sed 's/.*] //; s/+.*//' $task/stack | head -5 | tr '\n' ' ')"
        done
        # The program's own, too; the emulator takes its time for them.
        [ ! -e /bin/eu-stack ] || timeout 60 eu-stack -n 16 -p $pid 2>&1 | sed 's/^/stack /'
    done
}

# limited SECONDS COMMAND...: it is done by then, or is shown and killed.
limited() {
    limit_tenths=$(($1 * 5))
    shift
    "$@" &
    limited_pid=$!
    while kill -0 $limited_pid 2>/dev/null; do
        if [ $limit_tenths -le 0 ]; then
            echo "node test $1 $2: failed: not done in time"
            nodes_stacks
            kill -9 $limited_pid
            return 124
        fi
        limit_tenths=$((limit_tenths - 1))
        sleep 0.2
    done
    wait $limited_pid
}

# node_mount a|b OPTIONS: its daemon's words are in /tmp/a.log.
node_mount() {
    mkdir -p /tmp/data /tmp/$1
    mount.gaiafs /tmp/data /tmp/$1 -f -o node=$1,$nodes_peers,$2 >/tmp/$1.log 2>&1 &
    eval pid_$1=$!
    for n in $(seq 400); do
        grep -q " /tmp/$1 " /proc/mounts && return
        sleep 0.1
    done
    echo "node test mount of $1: failed: it is not there"
    nodes_stacks
    cat /tmp/$1.log
}

# node_umount a|b WHAT: the daemon ends by itself, and says that all is well; or, where bytes were on a device that is gone, that they are lost.
node_umount() {
    eval pid=\$pid_$1
    umount /tmp/$1 || umount -l /tmp/$1
    for n in $(seq ${nodes_ends_tenths:-200}); do
        kill -0 $pid 2>/dev/null || break
        sleep 0.1
    done
    if kill -0 $pid 2>/dev/null; then
        echo "node test $2, node $1 unmounts: failed: its daemon is still there after ${nodes_ends_tenths:-200} tenths of a second"
        nodes_stacks
        kill -9 $pid
    fi
    wait $pid
    status=$?
    if [ $status = 0 ] || { [ $status = 1 ] && [ "$2" != "all is well" ] && grep -q "is lost: Input/output error" /tmp/$1.log; }; then
        echo "node test $2, node $1 unmounts: ok, after $n tenths of a second"
    else
        echo "node test $2, node $1 unmounts: failed: exit status $status"
    fi
    sed "s/^/log $1: /" /tmp/$1.log
}

# survive SELF NAME COMMAND...: node SELF has programs at work on its own and the other node's files when the command takes the other away
# (nodes_still=still: they are between two calls just then).
survive() {
    survive_self=$1
    survive_name=$2
    shift 2
    rm -f /tmp/ready /tmp/gone /tmp/late
    limited 300 tool_survive /tmp/$survive_self ${nodes_data:-/tmp/data} $survive_self $nodes_limit_ms "$survive_name" $nodes_still &
    survive_pid=$!
    {
        while kill -0 $survive_pid 2>/dev/null && [ ! -e /tmp/late ]; do sleep 0.5; done
        [ ! -e /tmp/late ] || nodes_stacks
    } &
    for n in $(seq 900); do
        [ -e /tmp/ready ] && break
        sleep 0.2
    done
    "$@"
    touch /tmp/gone
    wait $survive_pid || echo "tool_survive: exit status $?"
}

# The wire carries nothing any more: what either end sends goes to an address that nobody has. No device notices: rxe takes 7 retries for
# endless ones.
wire_silent() {
    $ip neigh replace 10.0.1.1 dev veth0 lladdr 02:00:00:00:00:01 nud permanent
    $ip neigh replace 10.0.0.1 dev veth1 lladdr 02:00:00:00:00:02 nud permanent
}
wire_heard() {
    $ip neigh del 10.0.1.1 dev veth0
    $ip neigh del 10.0.0.1 dev veth1
}

# nodes_met: each says that the other is up. Until then a new file may be claimed by either (docs/nodes.md).
nodes_met() {
    for n in $(seq 100); do
        gaiactl stat /tmp/a | grep -q 'node b: up' && gaiactl stat /tmp/b | grep -q 'node a: up' && return
        sleep 0.2
    done
    return 1
}

# No end has its address any more, so that what a device sends fails at once: queue pairs end in error. (Where a link is down instead, rxe
# of Linux 6.1 may try to send one packet for ever, and whoever takes it down waits for that.) The routes go, too.
addresses_away() {
    $ip addr del 10.0.0.1/24 dev veth0
    $ip addr del 10.0.1.1/24 dev veth1
}
addresses_back() {
    $ip addr add 10.0.0.1/24 dev veth0
    $ip addr add 10.0.1.1/24 dev veth1
    $ip route replace 10.0.1.1 dev veth0 src 10.0.0.1 table 101
    $ip route replace 10.0.0.1 dev veth1 src 10.0.1.1 table 102
    for n in 1 2 3 4 5 6 7 8 9 10; do
        ping -q -c 1 -W 1 -I 10.0.0.1 10.0.1.1 >/dev/null && ping -q -c 1 -W 1 -I 10.0.1.1 10.0.0.1 >/dev/null && return
    done
    echo "the wire does not come up again"
    $ip route show table all
}

# device_away NAME: the device of a is taken away, which its driver can do only when the daemon has let go of it; and the log says so.
# device_back: it is there again.
device_away() {
    if ! timeout 30 rdma link del ${kind}0; then
        echo "node test $1: failed: the daemon keeps the device"
    elif ! grep -q "node b is taken to be down: the device ${kind}0 has gone" /tmp/a.log; then
        echo "node test $1: failed: the log does not say so"
    else
        echo "node test $1: ok"
    fi
}
device_back() {
    rdma link add ${kind}0 type $kind netdev veth0
}

# The link of a goes down, while no queue pair has anything to send: see above.
port_down() {
    $ip link set veth0 down
}

# refused NAME PATTERN COMMAND...: it fails, and says why.
refused() {
    refused_name=$1
    refused_pattern=$2
    shift 2
    if limited 60 "$@" >/tmp/refused.log 2>&1; then
        echo "node test $refused_name: failed: it went well"
    elif grep -q "$refused_pattern" /tmp/refused.log; then
        echo "node test $refused_name: ok"
    else
        echo "node test $refused_name: failed: it does not say why"
    fi
    sed "s/^/log: /" /tmp/refused.log
}
