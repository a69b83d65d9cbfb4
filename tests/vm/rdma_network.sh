# SPDX-License-Identifier: Apache-2.0
# In the virtual machine (rdma.py puts this before what it runs there): two RDMA devices of $kind, rxe0 at 10.0.0.1 and rxe1 at 10.0.1.1, with a
# wire between them. rxe knows one network namespace only (6.1), where the kernel would hand what goes to an address of its own
# straight to itself: rules say first that what one of the two sends to the other leaves through its own end of the wire.
ip=/usr/sbin/ip
$ip link set lo up
$ip link add veth0 type veth peer name veth1
$ip addr add 10.0.0.1/24 dev veth0
$ip addr add 10.0.1.1/24 dev veth1
$ip link set veth0 mtu 4500 up
$ip link set veth1 mtu 4500 up
for d in all veth0 veth1; do
    echo 1 >/proc/sys/net/ipv4/conf/$d/accept_local
    echo 0 >/proc/sys/net/ipv4/conf/$d/rp_filter
    echo 1 >/proc/sys/net/ipv4/conf/$d/arp_ignore
    echo 2 >/proc/sys/net/ipv4/conf/$d/arp_announce
done
$ip rule add pref 10 iif veth0 lookup local
$ip rule add pref 10 iif veth1 lookup local
$ip rule add pref 20 from 10.0.0.1 to 10.0.1.1 lookup 101
$ip rule add pref 20 from 10.0.1.1 to 10.0.0.1 lookup 102
$ip rule add pref 100 lookup local
$ip rule del pref 0
$ip route add 10.0.1.1 dev veth0 src 10.0.0.1 table 101
$ip route add 10.0.0.1 dev veth1 src 10.0.1.1 table 102
# A wire keeps the order of its packets. A veth pair does not: each goes on on the processor that sent it, so of two processors' packets
# either may be first, and rxe sends again what comes out of order. So what arrives is all handled by one processor.
for d in veth0 veth1; do
    echo 1 >/sys/class/net/$d/queues/rx-0/rps_cpus || echo "rdma.py: the wire does not keep order"
done
[ $kind = rxe ] || ulimit -l unlimited # siw counts root's memory, too
rdma link add ${kind}0 type $kind netdev veth0 || echo "rdma.py: no $kind"
rdma link add ${kind}1 type $kind netdev veth1 || echo "rdma.py: no $kind"
# The link comes up, and the two find each other.
for n in 1 2 3 4 5 6 7 8 9 10; do
    ping -q -c 1 -W 1 -I 10.0.0.1 10.0.1.1 >/dev/null && ping -q -c 1 -W 1 -I 10.0.1.1 10.0.0.1 >/dev/null && break
done
rdma link
