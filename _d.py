import hashlib,torch
from fl.errors import Where
from fl.code import registry
for name,keys in (('resnet18',{}),('resnet50',{'stem':'imagenet','norm':'group'}),('resnet18',{'projection':16}),('unet',{'width':2,'levels':2})):
    e=registry.find('model',name,Where('x')); m=e.make(e.parse(keys,Where('x')))
    torch.manual_seed(0); n=m.build((1,32,32),5)
    h=hashlib.sha256()
    for k,v in n.state_dict().items(): h.update(k.encode()); h.update(v.numpy().tobytes())
    n.eval(); o=n(torch.ones(2,1,32,32)); h.update(o.detach().numpy().tobytes())
    print(name,keys,h.hexdigest()[:16])
