#!/bin/bash
# Process 1 of a node, in the host's root: names the cables, makes their RDMA devices, starts sshd, then the agent.
# Usage: guest.sh NODE PYTHON KEYS. MAC 52:54:00:00:NN:PP is node NN's cable to node PP; PP = 00 is the management network.
export PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root
here=${BASH_SOURCE[0]%/*} node=$1 python=$2 keys=$3
echo "node$node" > /proc/sys/kernel/hostname
ulimit -l unlimited
links="link set lo up"$'\n' devices=
for path in /sys/class/net/eth*; do
    read -r mac < "$path/address"
    peer=$((16#${mac##*:})) device=${path##*/}
    if [ "$peer" = 0 ]; then
        links+="link set $device name mgmt up"$'\n'"addr add 10.0.2.15/24 dev mgmt"$'\n'"route add default via 10.0.2.2"$'\n'
        continue
    fi
    low=$((node < peer ? node : peer)) high=$((node < peer ? peer : node))
    # An MTU of 4200 gives the RDMA path MTU 4096 that Thunderbolt has.
    links+="link set $device name en$peer mtu 4200 up"$'\n'"addr add 10.$low.$high.$node/24 dev en$peer"$'\n'
    devices+="link add rdma_en$peer type rxe netdev en$peer"$'\n'
done
ip -batch - <<<"$links"
rdma --batch - <<<"$devices"
umask 077
[ -d /root/.ssh ] || mkdir /root/.ssh
printf '%s\n' "$(< "$keys/client.pub")" > /root/.ssh/authorized_keys
umask 022
dropbear -s -p 22 -r "$keys/host" -P /run/dropbear.pid &
for tries in {1..100}; do
    for name in /sys/class/virtio-ports/*/name; do
        if [ -e "$name" ] && [ "$(< "$name")" = wire ]; then
            name=${name%/name}
            exec "$python" -I -S "$here/agent.py" "/dev/${name##*/}"
        fi
    done
    sleep 0.1
done
echo "no wire to the host"
