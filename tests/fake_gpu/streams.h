// Streams of the fake GPU that TensorFlow takes for NVIDIA's.
#pragma once

// From now on a Stream of TensorFlow's tells its CUstream. False if TensorFlow has no function for
// that.
bool TellStreams();
