#!/bin/sh
# Create a federation of some nodes below a folder, unless it exists: setup.sh FOLDER NODES BROKER
set -eu
folder=$1 nodes=$2 broker=$3
if [ -e "$folder/ready" ]; then
    exit 0
fi
rm -rf "$folder"/node* "$folder"/admission # of an attempt that did not end
k=1
while [ "$k" -le "$nodes" ]; do
    p2pfl-node init "$folder/node$k" --part "$((k - 1))/$nodes" --task concept-shift --policy random --broker "$broker"
    k=$((k + 1))
done
p2pfl-node federation create "$folder/node1" --name trial --set "members=$nodes" --backup "$folder/admission-key.backup"
k=2
while [ "$k" -le "$nodes" ]; do
    p2pfl-node request "$folder/node$k" | p2pfl-node admit "$folder/node1" - --out "$folder/admission"
    p2pfl-node join "$folder/node$k" "$folder/admission" --yes
    k=$((k + 1))
done
rm -f "$folder/admission"
touch "$folder/ready"
