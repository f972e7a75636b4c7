"""Work safely inside somebody else's process: faults, signals, bytecode."""
