# SPDX-License-Identifier: Apache-2.0
import attnd, numpy

geometry = {'layers': 1, 'query_heads': 8, 'kv_heads': 2, 'head_dim': 64, 'block_size': 4, 'dtype': 'f32', 'kv_dtype': 'f32'}
engine = attnd.Engine({'geometry': geometry, 'pool': {'blocks': 64}})
random = numpy.random.default_rng(0)

parent = engine.create()
k, v = random.standard_normal((2, 6, 2, 64), dtype='f4')                # six tokens, two KV heads
engine.append(parent, k, v)
child = engine.fork(parent)                                             # shares both blocks
print('forked   ', engine.blocks(parent), engine.blocks(child))
q, (k1, v1) = random.standard_normal((1, 8, 64), dtype='f4'), random.standard_normal((2, 1, 2, 64), dtype='f4')
o = engine.attend(child, q, k=k1, v=v1)                                 # append a token, attend over seven
print('written  ', engine.blocks(parent), engine.blocks(child))         # the half-full block was copied

keys, values = (numpy.concatenate(x).repeat(4, axis=1) for x in ((k, k1), (v, v1)))
weights = numpy.exp(numpy.einsum('hd,thd->ht', q[0], keys) / 8)         # the same in NumPy: softmax(q k / sqrt(64)) v
expected = numpy.einsum('ht,thd->hd', weights / weights.sum(1, keepdims=True), values)
print('largest difference from NumPy', abs(o[0] - expected).max())
