"""What every op shares and no op's arithmetic depends on: argument checks, dispatch, capability, source digests, configurations."""
