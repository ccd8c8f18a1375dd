#!/bin/sh
# Copy the examples to a place of their own, for users who cannot read this repository: copy-to.sh DIR
# makes DIR/train (with the simulator beside train.py) and DIR/jobs.
set -eu
target=${1:?usage: copy-to.sh DIR}
here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
mkdir -p "$target/train" "$target/jobs"
cp "$here"/train/*.py "$target/train/"
rm -rf "$target/train/verl"
cp -r "$here/train/verl" "$target/train/verl"
rm -rf "$target/train/simulator"
mkdir "$target/train/simulator"
cp "$here"/../simulator/*.py "$target/train/simulator/"
cp "$here"/jobs/* "$target/jobs/"
