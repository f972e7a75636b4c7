"""LSTM, GRU and RNN through cuDNN."""
