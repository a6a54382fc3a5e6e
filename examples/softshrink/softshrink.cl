__kernel void softshrink(__global float *result, __global const float *x, float lambd, long n) {
  const long i = get_global_id(0);
  if (i < n)
    result[i] = x[i] > lambd ? x[i] - lambd : x[i] < -lambd ? x[i] + lambd : x[i] * 0;
}

__kernel void softshrink_backward(
    __global float *result,
    __global const float *grad,
    __global const float *x,
    float lambd,
    long n) {
  const long i = get_global_id(0);
  if (i < n)
    result[i] = x[i] >= -lambd && x[i] <= lambd ? 0 : grad[i];
}
